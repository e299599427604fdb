"""The manual page that ``--help`` shows: groups, choices and keys, read from the comments in ``conf/``.

The page itself is the key ``hydra.help.template`` of each command's configuration; it asks for the parts that follow
with ``${manual:groups,config}`` and ``${manual:keys,config}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from agents.paths import PROJECT

CONF = PROJECT / "conf"
NOUNS = {
    "env": "what is decoded: traces or the real models; the memory budget",
    "agent": "how the policy learns",
    "zoo": "the target and its drafts",
    "device": "what work costs",
    "workload": "what streams of requests are like",
    "suite": "who is judged, on how much",
    "study": "the key that is varied",
    "experiment": "recipes: a suite with all that it needs (+experiment=NAME)",
}
"""Groups, and what each says."""
SENTENCE = re.compile(r"(?<=[.:;?!])\s")
SERVICE = {"hydra", "defaults"}


def register() -> None:
    """Let configurations ask for parts of the page."""
    OmegaConf.register_new_resolver("manual", part, replace=True)


def part(name: str, command: str) -> str:
    """One part of a command's page, escaped for Hydra's template: ``groups``, ``keys`` or ``experiments``."""
    parts: dict[str, Callable[[str], str]] = {
        "groups": _groups,
        "keys": _keys,
        "experiments": lambda _: _choices("experiment", ""),
    }
    return parts[name](command).replace("$", "$$")


def first_sentence(path: Path) -> str:
    """What the comment at the top of a file says first, package line left out."""
    words = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            words.append(line.lstrip("# "))
    return SENTENCE.split(" ".join(words))[0].rstrip(".:;")


def default_choices(command: str) -> dict[str, str]:
    """The choice of each group that a command starts from, in order."""
    config = yaml.safe_load((CONF / f"{command}.yaml").read_text(encoding="utf-8"))
    entries: list[Any] = config["defaults"]
    pairs = [next(iter(entry.items())) for entry in entries if isinstance(entry, dict)]
    return {str(group): choice for group, choice in pairs if group in NOUNS and isinstance(choice, str)}


def _groups(command: str) -> str:
    chosen = default_choices(command)
    shown = [f"{group}  {NOUNS[group]}\n{_choices(group, choice)}" for group, choice in chosen.items()]
    return "\n".join(shown).rstrip()


def _choices(group: str, default: str) -> str:
    paths = sorted((CONF / group).glob("*.yaml"))
    width = max((len(path.stem) for path in paths), default=0) + 1
    lines = (
        f"    {path.stem + ('*' if path.stem == default else ''):{width}}  {first_sentence(path)}\n" for path in paths
    )
    return "".join(lines)


def _keys(command: str) -> str:
    """Keys of a command and its default choices, as they stand in ``conf/``, comments included."""
    shown = [_body(CONF / f"{command}.yaml")]
    for group, choice in default_choices(command).items():
        lines = _body(_base(group, choice)).splitlines()
        shown.append("\n".join([f"{group}:", *(f"  {line}" for line in lines)]))
    return "\n".join(shown)


def _base(group: str, choice: str) -> Path:
    """The file in which a choice's keys are explained: its own, or the one it starts from."""
    path = CONF / group / f"{choice}.yaml"
    keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    starts = [entry for entry in keys.get("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    return _base(group, starts[0].partition("@")[0]) if starts else path


def _body(path: Path) -> str:
    """A file without its head comment and without what only Hydra reads."""
    kept, keep = [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            keep = line.partition(":")[0] not in SERVICE
        if keep and line.strip():
            kept.append(line)
    return "\n".join(kept)
