"""This engine and its controllers against transformers' ``generate``, on the same prompts, weights and threads.

    python -m benchmarks.engines --bundle BUNDLE [--prompts N] [--max-tokens N] [--minutes M] [--out FILE]

transformers   the model as ``from_pretrained`` gives it, fp32, greedy: plain; ``assistant_model`` at its defaults, at
               constant lengths, at constant lengths with the default confidence stop; ``prompt_lookup_num_tokens``.
               The assistant is the zoo's generalist draft, see ``benchmarks/engines/assistant.py``
specpilot      plain with weights kept in fp32, plain as it comes (weights in the few bits that hold them exactly), the
               best static controller, the stacked heuristics, the bundle's policy without and with guard; with
               ``--int8 BUNDLE`` also the target in int8 under plain, stacked and that bundle's guarded policy

Everybody answers one prompt, then the next, in an order that rotates. Every text is compared with that of plain
``generate``; a text that differs is reported with the logits between the two tokens, and one of this engine's that
differs by more than a near-tie makes the exit status 1. With ``--minutes`` the comparison stops there, and the same
command goes on with it: rows are kept in the report.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agents.report.revision import git_revision
from benchmarks.engines.compare import Difference, Row, differences, earlier, measure, warm_up
from benchmarks.engines.memory import peaks
from benchmarks.engines.ours import INT8
from benchmarks.engines.prompts import Prompt, held_out
from benchmarks.engines.report import summary, table
from benchmarks.engines.setting import TRACES, Options, open_bundle, open_ours, open_transformers
from runtime.bundle import library_versions
from runtime.decoding.greedy import MARGINS
from runtime.device import device_name
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 1


def run(options: Options, count: int, max_tokens: int, minutes: float, out: Path, progress: bool) -> int:
    """Measure, or go on measuring, and report; returns the exit status."""
    until_s = time.perf_counter() + 60.0 * minutes
    bundle = open_bundle(options.bundle)
    prompts = held_out(options.traces, bundle.zoo.target.fingerprint, count)
    facts = _facts(options, bundle.policy_sha256, max_tokens)
    rows = earlier(out, facts, SCHEMA)
    with ExitStack() as opened:
        model, contenders = open_transformers(options, bundle)
        ours, static = open_ours(options, bundle, opened, floats=True)
        contenders += ours
        warm_up(contenders, prompts[0])
        keep = partial(_keep, out, {**facts, "static": static})
        clock = time.process_time if options.clock == "cpu" else time.perf_counter
        whole = measure(contenders, prompts, max_tokens, rows, keep, until_s, progress, clock)
        if not whole:
            print(f"{len({row.prompt_id for row in rows})} of {count} prompts are answered: run the same command again")
            return 0
        wanted = {prompt.prompt_id for prompt in prompts}
        rows = [row for row in rows if row.prompt_id in wanted]
        unlike = differences(rows, prompts, model)
    memory = peaks(options, max(prompts, key=lambda prompt: len(prompt.tokens)).tokens, max_tokens)
    return _report(out, {**facts, "static": static}, rows, prompts, unlike, memory)


def _report(
    out: Path,
    facts: dict[str, Any],
    rows: list[Row],
    prompts: Sequence[Prompt],
    unlike: Sequence[Difference],
    memory: dict[str, dict[str, int]],
) -> int:
    entries = summary(rows)
    found = {
        "prompts": [prompt._replace(tokens=(len(prompt.tokens),))._asdict() for prompt in prompts],
        "differences": [difference._asdict() for difference in unlike],
        "identical": not unlike,
        "summary": entries,
        "memory": memory,
    }
    _keep(out, facts, rows, **found)
    print(table(entries))
    for difference in unlike:
        print(
            "{prompt_id}, {contender}: differs at token {position}, logit gap {gap:.2g}".format(**difference._asdict())
        )
    print(f"{len(rows) - len(unlike)} of {len(rows)} texts are those of plain generate (int8: of its plain decoding)")
    for side, sizes in memory.items():
        print(f"{side}: {sizes['peak_bytes'] / 1e6:.0f} MB at most, {sizes['loaded_bytes'] / 1e6:.0f} MB when loaded")
    wrong = [
        one
        for one in unlike
        if one.contender.startswith("specpilot")
        and (one.contender.startswith(INT8) or not abs(one.gap) < MARGINS[torch.float32])
    ]
    return 1 if wrong else 0


def _facts(options: Options, policy: str, max_tokens: int) -> dict[str, Any]:
    return {
        "device": device_name(),
        "cores": os.cpu_count(),
        "threads": options.used_threads,
        "clock": options.clock,
        "dtype": "float32",
        "versions": library_versions("torch", "transformers", "onnxruntime"),
        "git": git_revision(),
        "policy": policy,
        "profile": str(options.profile or ""),
        "int8": "" if options.int8 is None else open_bundle(options.int8).policy_sha256,
        "max_tokens": max_tokens,
    }


def _keep(out: Path, facts: dict[str, Any], rows: list[Row], **more: Any) -> None:
    write_json(out, {"schema": SCHEMA, **facts, **more, "rows": [row._asdict() for row in rows]})


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--bundle", type=Path, default=Path("outputs/latest/bundle"), help="zoo, memory, policy")
    parser.add_argument("--prompts", type=int, default=40, help="how many (default: 40)")
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens of an answer (default: 64)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no prompt behind this")
    parser.add_argument("--traces", type=Path, default=TRACES, help="held-out traces, whose prompts are asked")
    parser.add_argument("--profile", type=Path, help="the device's profile (default: the kept one, else measured)")
    parser.add_argument("--int8", type=Path, help="bundle trained for the target in int8")
    parser.add_argument("--static", help="static controller (default: tuned on training streams)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of every side (default: all cores)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="cpu: the process's own time, for a machine that others use; with one thread")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("outputs/engines.json"), help="report (default: outputs/...)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    given = parser.parse_args(arguments)
    if given.prompts < 1 or given.max_tokens < 1:
        parser.error("--prompts and --max-tokens must be at least 1")
    options = Options(given.bundle, given.traces, given.profile, given.static, given.threads, given.clock, given.int8)
    try:
        return run(options, given.prompts, given.max_tokens, given.minutes, given.out, not given.no_progress)
    except UserError as error:
        print(f"benchmarks.engines: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
