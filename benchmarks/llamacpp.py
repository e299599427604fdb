"""llama.cpp as people run it from Python, against this engine over the same llama.cpp, file, prompts and threads.

    python -m benchmarks.llamacpp --bundle BUNDLE [--prompts N] [--max-tokens N] [--minutes M] [--out FILE]
    python -m benchmarks.llamacpp --widths                # forward times by width, nothing else

llama-cpp-python   ``Llama.generate`` at temperature 0: plain, and with its own ``LlamaPromptLookupDecoding``
specpilot          plain, static controllers, the stacked heuristics, the bundle's policy without and with guard
specpilot int8     with ``--int8 BUNDLE``: the torch engine in int8 under plain, stacked, that bundle's guarded policy

Everybody answers one prompt, then the next, in an order that rotates. All texts of this engine must be its plain text:
if one is not, the exit status is 1. Texts of ``Llama.generate`` are compared and counted. Rows are kept in the report:
with ``--minutes`` the comparison stops there, and the same command goes on with it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from agents.bootstrap import Speeds, ratio_interval
from benchmarks.engines.base import Contender
from benchmarks.engines.compare import Row, earlier, measure, warm_up
from benchmarks.engines.ours import INT8, PLAIN_INT8, POLICY_GUARDED, Sessions, in_integers
from benchmarks.engines.prompts import held_out
from benchmarks.engines.setting import TRACES, open_bundle
from runtime.bundle import Bundle, library_versions
from runtime.device import device_name, device_profile
from runtime.engine.base import TargetModel
from runtime.engine.llamacpp.context import BATCH_TOKENS, BF16
from runtime.engine.llamacpp.model import CONTEXT_TOKENS
from runtime.engine.opening import LLAMACPP
from runtime.engine.sources import resolve_gguf
from runtime.errors import UserError
from runtime.files import write_json
from runtime.live import LiveModels, open_models
from runtime.profile import CostModel, Profile
from runtime.threads import usable_threads
from runtime.timing import timed

SCHEMA = 1
THEIRS, OURS = "llama-cpp-python: ", "specpilot: "
PLAIN_THEIRS, PLAIN_OURS = f"{THEIRS}plain", f"{OURS}plain"
PLAIN_SAME = f"{THEIRS}plain, attention as here"
LOOKUP_CONTEXT = 1024
"""Its look-up keeps the logits of a whole context, 200 kB a token; without being told to it fails beyond a batch."""
LOOKUPS = (10, 2)
"""Guesses of llama-cpp-python's prompt lookup: its default, and what its documentation advises for CPU."""
STATICS = ("static:generalist:2:1", "static:generalist:4:1", "static:lookup:4", "stacked", "stacked_plus")
WIDTHS = (1, 2, 3, 4, 5, 9, 17)
CONTEXT, ROUNDS = 200, 25


class LlamaGenerate:
    """Implements ``Contender`` by ``Llama.generate``.

    Args:
        path: The GGUF file.
        threads: CPU threads.
        eos_ids: Tokens that end a text.
        lookup: Guesses of its prompt lookup; 0 = plain.
        same: Whether its attention is computed as this engine's, so that texts can be compared; else as it comes.
    """

    def __init__(self, path: Path, threads: int, eos_ids: frozenset[int], lookup: int, same: bool) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self.name = f"{THEIRS}prompt lookup, {lookup} guesses" if lookup else PLAIN_SAME if same else PLAIN_THEIRS
        self.family = "lookup" if lookup else "plain"
        draft = LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None
        self._model = Llama(
            str(path), n_ctx=LOOKUP_CONTEXT if lookup else CONTEXT_TOKENS, n_batch=BATCH_TOKENS, n_threads=threads,
            n_threads_batch=threads, draft_model=draft, logits_all=lookup > 0, flash_attn=same,
            type_v=BF16 if same else None, verbose=False,
        )  # fmt: skip
        self._eos_ids = eos_ids

    def answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        tokens: list[int] = []
        self._model.reset()  # plain decoding here keeps nothing of the prompt before either
        for token in self._model.generate(list(prompt), temp=0.0, repeat_penalty=1.0):
            tokens.append(token)
            if len(tokens) == max_tokens or token in self._eos_ids:
                break
        return tuple(tokens)

    def settle(self) -> None: ...


def contenders(
    models: LiveModels, bundle: Bundle, profile: Profile, threads: int, opened: ExitStack
) -> list[Contender]:
    """Everybody."""
    path = resolve_gguf(bundle.zoo.target.sources[0])
    eos_ids = frozenset(bundle.zoo.target.eos_ids)
    costs = CostModel(profile, bundle.zoo.draft_names)
    sessions = Sessions(models, bundle, costs, opened)
    found: list[Contender] = [LlamaGenerate(path, threads, eos_ids, lookup, False) for lookup in (0, *LOOKUPS)]
    found.append(LlamaGenerate(path, threads, eos_ids, 0, True))
    return found + [sessions.contender(f"{OURS}{name}", name) for name in ("plain", *STATICS, "policy", POLICY_GUARDED)]


def chosen(everybody: Sequence[Contender], only: str) -> list[Contender]:
    """Those whose name has one of some words in it, and the plain ones they are compared with; no word = all.

    Raises:
        UserError: If no name has one of the words.
    """
    words = [word.strip() for word in only.split(",") if word.strip()]
    found = [each for each in everybody if not words or any(word in each.name for word in words)]
    for word in words:
        if not any(word in each.name for each in found):
            names = "; ".join(each.name for each in everybody)
            raise UserError(f"--only: nobody's name has '{word}' in it, expected a part of one of: {names}")
    return [each for each in everybody if each in found or each.name in (PLAIN_THEIRS, PLAIN_OURS, PLAIN_INT8)]


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a contender: tokens/s, the ratio to plain ``Llama.generate`` with its 95% interval, unlike texts."""
    speeds = {name: _speeds(rows, name) for name in dict.fromkeys(row.contender for row in rows)}
    plains = {name: {r.prompt_id: r.tokens for r in rows if r.contender == name} for name in (PLAIN_OURS, PLAIN_INT8)}
    return [
        {
            "contender": name,
            "prompts": len(speed.tokens),
            "tokens": int(sum(speed.tokens)),
            "tokens_per_s": sum(speed.tokens) / sum(speed.seconds),
            "ratio_to_plain": ratio_interval(speed, speeds[PLAIN_THEIRS])._asdict(),
            "unlike_plain": _unlike([row for row in rows if row.contender == name], plains),
        }
        for name, speed in sorted(speeds.items())
    ]


def _unlike(rows: Sequence[Row], plains: Mapping[str, Mapping[str, list[int]]]) -> int:
    """Texts of one contender that are not its engine's plain ones."""
    own = [plains[PLAIN_INT8 if row.contender.startswith(INT8) else PLAIN_OURS][row.prompt_id] for row in rows]
    return sum(row.tokens != plain for row, plain in zip(rows, own, strict=True))


def _speeds(rows: Sequence[Row], name: str) -> Speeds:
    own = sorted((row.prompt_id, len(row.tokens), row.seconds) for row in rows if row.contender == name)
    return Speeds([tokens for _, tokens, _ in own], [seconds for _, _, seconds in own])


def widths(target: TargetModel) -> list[dict[str, float]]:
    """Seconds of a forward by width behind a context, interleaved."""
    tokens = [(7 * i + 3) % 1000 + 100 for i in range(CONTEXT)]
    target.reset()
    target.forward(tokens, "last")

    def forward(width: int) -> None:
        target.forward(tokens[:width], "all")
        target.crop(CONTEXT)

    found = timed({width: partial(forward, width) for width in WIDTHS}, ROUNDS, target.synchronize)
    return [{"width": width, "seconds": point.seconds, "ratio": point.seconds / found[1].seconds}
            for width, point in found.items()]  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Measure, or go on measuring, and report; returns the exit status."""
    until_s = time.perf_counter() + 60.0 * options.minutes
    bundle, threads = open_bundle(options.bundle), options.threads or usable_threads()
    models = open_models(bundle.zoo, threads=threads, engine=LLAMACPP)
    by_width = widths(models.target)
    for point in by_width:
        print(f"width {point['width']:3.0f}  {point['seconds'] * 1e3:6.2f} ms  {point['ratio']:.2f}")
    if options.widths:
        return 0
    prompts = held_out(options.traces, bundle.zoo.target.fingerprint, options.prompts)
    profile = (
        Profile.load(options.profile)
        if options.profile
        else device_profile(bundle.zoo, threads=threads, models=models, engine=LLAMACPP)
    )
    facts = {
        "device": device_name(), "cores": os.cpu_count(), "threads": threads, "policy": bundle.policy_sha256,
        "versions": library_versions("torch", "llama-cpp-python"), "max_tokens": options.max_tokens,
        "int8": "" if options.int8 is None else open_bundle(options.int8).policy_sha256,
    }  # fmt: skip
    rows = earlier(options.out, facts, SCHEMA)

    def keep(rows: list[Row], **more: Any) -> None:
        kept = [row._asdict() for row in rows]
        write_json(options.out, {"schema": SCHEMA, **facts, "widths": by_width, **more, "rows": kept})

    with ExitStack() as opened:
        everybody = contenders(models, bundle, profile, threads, opened)
        everybody += in_integers(options.int8, threads, opened) if options.int8 else []
        everybody = chosen(everybody, options.only)
        warm_up(everybody, prompts[0])
        if not measure(everybody, prompts, options.max_tokens, rows, keep, until_s, not options.no_progress):
            print(f"{len({row.prompt_id for row in rows})} of {len(prompts)} prompts: run the same command again")
            return 0
    entries = summary(rows)
    keep(rows, summary=entries)
    for entry in entries:
        ratio = "{value:.2f} [{low:.2f}, {high:.2f}]".format(**entry["ratio_to_plain"])
        print(
            f"{entry['contender']:<44} {entry['tokens_per_s']:6.1f} tokens/s  {ratio}  unlike {entry['unlike_plain']}"
        )
    return int(any(entry["unlike_plain"] for entry in entries if entry["contender"].startswith((OURS, INT8))))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llamacpp", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--bundle", type=Path, default=Path("outputs/latest/bundle"), help="zoo, memory, policy")
    parser.add_argument("--prompts", type=int, default=40, help="how many (default: 40)")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens of an answer (default: 128)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no prompt behind this")
    parser.add_argument("--traces", type=Path, default=TRACES, help="held-out traces, whose prompts are asked")
    parser.add_argument("--profile", type=Path, help="the device's profile (default: the kept one, else measured)")
    parser.add_argument("--int8", type=Path, help="bundle trained for the torch engine's target in int8")
    parser.add_argument("--only", default="", help="compare only those with one of these words (a,b,...) in their name")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of every side (default: all cores)")
    parser.add_argument("--widths", action="store_true", help="only forward times by width")
    parser.add_argument("--out", type=Path, default=Path("outputs/llamacpp.json"), help="report (default: outputs/...)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    try:
        return run(parser.parse_args(arguments))
    except UserError as error:
        print(f"benchmarks.llamacpp: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
