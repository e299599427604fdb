"""The configuration files: every choice composes, every key is explained, none is dead, and folders outside join in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from agents.manual import CONF, NOUNS, default_choices, first_sentence, part
from agents.paths import PROJECT, project_path
from agents.setup import agent_settings
from agents.validation import check
from runtime.errors import UserError
from tests.tiny_zoo import composed

COMMANDS = ("config", "evaluate", "study", "menu")
GROUPS = [(path.parent.name, path.stem) for path in sorted(CONF.glob("*/*.yaml")) if path.parent.name in NOUNS]
NEEDS = {"zoo=folder": "zoo.folder", "device=profiled": "device.profile"}
"""Choices that need a path, and the key that takes it."""
RUNS = "runs=."


def in_group(name: str) -> list[str]:
    return [choice for group, choice in GROUPS if group == name]


def asking(command: str, *overrides: str) -> DictConfig:
    return composed(command, *([RUNS] if command == "menu" else []), *overrides)


# -- everything composes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("group", "choice"), [each for each in GROUPS if each[0] != "experiment"])
def test_every_choice_composes_and_fits(command: str, group: str, choice: str) -> None:
    if group not in default_choices(command):
        pytest.skip(f"{command} has no group {group}")
    override = f"{group}={choice}"
    config = asking(command, *([] if group == "suite" else ["suite=quick"]), override)
    assert config[group]
    if override in NEEDS:
        with pytest.raises(UserError, match=rf"{NEEDS[override]}: expected a value, got none"):
            check(config)
    else:
        check(config)


@pytest.mark.parametrize("experiment", in_group("experiment"))
def test_every_experiment_composes_and_fits(experiment: str) -> None:
    config = composed("config", f"+experiment={experiment}")
    assert agent_settings(config).total_timesteps > 256
    assert agent_settings(composed("config", f"+experiment={experiment}", "dry_run=true")).total_timesteps == 256
    check(composed("evaluate", f"+experiment={experiment}"))
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# @package _global_\n# Shows ")


@pytest.mark.parametrize(
    ("experiment", "key", "value"),
    [
        ("joint", "env.budget_kv_tokens", 0),
        ("memspec", "device.built.load", 2.7),
        ("memspec", "workload.kinds", ["single"]),
        ("memspec_learned", "agent.actions", "drafts"),
        ("memspec_learned", "zoo.drafts", ["code", "generalist", "legal", "math", "medical", "story"]),
        ("rakv_learned", "agent.actions", "lengths"),
        ("rakv_pruned", "zoo.folder", "envs/zoo/smollm2_pruned"),
        ("robust", "suite.judged_device.built.name", "Jetson Orin Nano"),
        ("fine_tune_live", "env.n_envs", 1),
    ],
)
def test_an_experiment_brings_all_that_its_suite_needs(experiment: str, key: str, value: object) -> None:
    assert OmegaConf.select(composed("config", f"+experiment={experiment}"), key) == value


def test_the_command_line_wins_over_an_experiment() -> None:
    config = composed("config", "+experiment=memspec", "device=this_machine", "agent.n_steps=64")
    assert config.device.built is None and config.agent.n_steps == 64


@pytest.mark.parametrize("suite", in_group("suite"))
def test_every_suite_can_be_run_dry(suite: str) -> None:
    assert agent_settings(composed("config", f"suite={suite}", "dry_run=true")).total_timesteps == 256
    check(composed("evaluate", f"suite={suite}", "dry_run=true"))


# -- keys --------------------------------------------------------------------------------------------------------

KEY = re.compile(r"^(\s*)([A-Za-z_][\w-]*):(\s*[^\s#])?")


def keys_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Dotted keys of a file that have a value, with their group, and whether a comment stands beside or above them."""
    text = path.read_text(encoding="utf-8")
    root = [] if path.parent == CONF or "# @package _global_" in text else [path.parent.name]
    stack: list[tuple[int, str]] = []
    above = ""
    for line in text.splitlines():
        if found := KEY.match(line):
            indent = len(found[1])
            stack = [each for each in stack if each[0] < indent]
            stack.append((indent, found[2]))
            names = [*root, *(name for _, name in stack)]
            if stack[0][1] not in ("hydra", "defaults") and found[3]:
                yield ".".join(names), "#" in line or above.startswith("#")
        above = line.strip()


EVERY_FILE = [*(CONF / f"{command}.yaml" for command in COMMANDS), *(CONF / g / f"{c}.yaml" for g, c in GROUPS)]


def test_every_key_is_explained() -> None:
    explained = {key for path in EVERY_FILE for key, has in keys_of(path) if has}
    unexplained = {f"{path.relative_to(CONF)}: {key}" for path in EVERY_FILE for key, _ in keys_of(path)}
    assert {each for each in unexplained if each.partition(": ")[2] not in explained} == set()
    for path in EVERY_FILE:
        assert path.read_text(encoding="utf-8").startswith("#"), f"{path}: say at the top what it is"
        assert yaml.safe_load(path.read_text(encoding="utf-8")) is not None


def words_of_the_code() -> set[str]:
    """Every name that code reads: attributes, fields of dataclasses, keys in quotes."""
    words: set[str] = set()
    for path in (PROJECT / "train.py", *(PROJECT / "agents").rglob("*.py"), *(PROJECT / "envs").rglob("*.py")):
        if path.name in ("limits.py", "manual.py"):
            continue  # what they know of a key does not make it work
        asks = path.name == "validation.py"  # nor do the keys that its rules name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                words.add(node.target.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not asks:
                words.update(re.split(r"[.\s]", node.value) if len(node.value) < 60 else ())
    return words


def leaves(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key, value in config.items_ex(resolve=False):
        if isinstance(value, DictConfig):
            yield from leaves(value, f"{prefix}{key!s}.")
        else:
            yield f"{prefix}{key!s}"


def test_no_key_is_dead() -> None:
    words = words_of_the_code()
    found = {key for command in COMMANDS for key in leaves(asking(command))}
    found |= {key for device in in_group("device") for key in leaves(composed("config", f"device={device}"))}
    widths = re.compile(r"\.\d+$")
    assert {key for key in found if not widths.search(key) and key.rpartition(".")[2] not in words} == set()


@pytest.mark.parametrize("choice", in_group("study"))
def test_every_study_varies_a_key_that_there_is(choice: str) -> None:
    config = composed("study", f"study={choice}")
    for key in (config.study.key, *config.study.get("also", ())):
        assert OmegaConf.select(config, key, default="missing") != "missing"


@pytest.mark.parametrize("suite", in_group("suite"))
def test_every_suite_is_named_like_its_file(suite: str) -> None:
    config = composed("evaluate", f"suite={suite}")
    assert config.suite.name == suite
    assert config.suite.env == ("live" if suite.endswith("live") else "replay")


# -- the manual page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_the_manual_names_every_choice_and_key(command: str) -> None:
    groups, keys = part("groups", command), part("keys", command)
    for group in default_choices(command):
        assert all(re.search(rf"\b{re.escape(choice)}\b", groups) for choice in in_group(group))
    default = asking(command)
    for key in leaves(default):
        if key.startswith("device.built."):
            continue  # of another device than the group's default: the suite chose it
        assert re.search(rf"(?m)^\s*{key.rpartition('.')[2]}:", keys), key


@pytest.mark.parametrize(("group", "choice"), GROUPS)
def test_every_choice_has_one_line_in_the_manual(group: str, choice: str) -> None:
    line = first_sentence(CONF / group / f"{choice}.yaml")
    assert 8 <= len(line) <= 130 and not line.startswith("#")


# -- folders outside ---------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of one's own, as docs/your-own-models.md shows it."""
    (tmp_path / "my-zoo").symlink_to(PROJECT / "envs/zoo/smollm2_pruned", target_is_directory=True)
    files = {
        "zoo/mine.yaml": f"defaults:\n  - smollm2\nfolder: {tmp_path}/my-zoo\n",
        "device/my-board.yaml": "defaults:\n  - laptop-gpu\nbuilt:\n  name: my board\n  load: 4.0\n",
        "workload/my-users.yaml": "defaults:\n  - mixed\nrequests: 3\n",
        "experiment/mine.yaml": "# @package _global_\ndefaults:\n  - override /zoo: mine\n"
        "  - override /device: my-board\n  - override /workload: my-users\n  - override /suite: quick\n  - _self_\n"
        "env:\n  budget_drafts: 1\n",
    }
    for name, text in files.items():
        path = tmp_path / "my-conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "my-conf"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_outside_joins_in(command: str, outside: Path) -> None:
    chosen = ("zoo=mine", "device=my-board", "workload=my-users", "suite=quick")
    config = asking(command, f"hydra.searchpath=[file://{outside}]", *chosen)
    check(config)
    assert project_path(config.zoo.folder) == outside.parent / "my-zoo"
    assert (config.device.built.name, config.device.built.load, config.device.built.plain_ms) == ("my board", 4.0, 14.0)
    assert (config.workload.requests, config.workload.follow_up) == (3, 0.6)


def test_an_experiment_outside_joins_in(outside: Path) -> None:
    config = composed("config", f"hydra.searchpath=[file://{outside}]", "+experiment=mine")
    check(config)
    assert (config.env.budget_drafts, config.suite.name) == (1, "quick")
    assert config.zoo.folder == str(outside.parent / "my-zoo")


def test_what_does_not_fit_outside_is_told(outside: Path) -> None:
    (outside / "zoo/mine.yaml").write_text("defaults:\n  - smollm2\nfolder: /nowhere\ndrafts: [a]\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"no zoo manifest at /nowhere/zoo\.json: check the path"):
        check(composed("config", f"hydra.searchpath=[file://{outside}]", "+experiment=mine"))


# -- another working directory -----------------------------------------------------------------------------------


def test_paths_do_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # a command that ran in this process began elsewhere
    monkeypatch.chdir(tmp_path)
    assert project_path("envs/zoo/smollm2") == PROJECT / "envs/zoo/smollm2"
    (tmp_path / "envs/zoo/smollm2").mkdir(parents=True)  # of the same name: the project's own stays
    assert project_path("envs/zoo/smollm2") == PROJECT / "envs/zoo/smollm2"
    (tmp_path / "mine").mkdir()
    assert project_path("mine") == tmp_path / "mine"
    assert project_path("nowhere") == PROJECT / "nowhere"
    assert project_path(str(tmp_path / "mine")) == tmp_path / "mine"
    check(composed("config"))
