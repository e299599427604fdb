"""Does the guard keep its promise on the real decoder, whatever decides?

    python -m benchmarks.floor [--tokens N] [--out FILE]

The same held-out requests are answered by plain decoding, by plain decoding once more (the control), and under the
guard by random decisions and by the worst ones, in turn. Over all runs of requests with at least 1,000 tokens, the time
is compared with plain decoding's time for the very same requests. What the control's worst run takes longer, this
machine's clock cannot tell from nothing. Asserts that all texts are the same. Exit status 1 if a run took more than 2%
longer, beyond the control's worst.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.random_controller import RandomController
from benchmarks.turns import SEED, Side, open_live, serve_tokens
from benchmarks.worst_controller import WorstController
from runtime.bundle import library_versions
from runtime.control.factory import guard
from runtime.control.floor import ALLOWED_SHARE, WINDOW_TOKENS
from runtime.control.guarded import GuardedController
from runtime.control.static import plain_controller
from runtime.device import device_name
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 2


def ratios(side: Side, plain: Side, window: int) -> list[float]:
    """Time / plain decoding's time of every shortest run of requests with at least ``window`` tokens."""
    tokens = np.cumsum([0, *side.tokens])
    seconds, plain_s = (np.cumsum([0.0, *each.seconds]) for each in (side, plain))
    ends = np.searchsorted(tokens, tokens + window)
    runs = [(begin, int(end)) for begin, end in enumerate(ends) if end < len(tokens)]
    return [float((seconds[end] - seconds[begin]) / (plain_s[end] - plain_s[begin])) for begin, end in runs]


def run(tokens: int, out: Path, progress: bool) -> int:
    """Measure and report; returns the exit status."""
    live = open_live()
    drafts, costs = live.models.zoo.specs(live.kv_reserve_tokens), live.costs
    sides = {
        "plain": Side(plain_controller(len(drafts))),
        "plain again": Side(plain_controller(len(drafts))),
        "random": Side(guard(RandomController(drafts, SEED, wait=0.0), drafts, costs)),
        "worst": Side(guard(WorstController(drafts), drafts, costs)),
    }
    serve_tokens(live, list(sides.values()), tokens, progress)
    rows = [describe(name, side, sides["plain"]) for name, side in sides.items()][1:]
    facts = {"device": device_name(), "versions": library_versions("torch", "transformers")}
    write_json(out, {"schema": SCHEMA, **facts, "tokens": sum(sides["plain"].tokens), "rows": rows})
    for row in rows:
        print(f"{row['controller']:<12} worst run {row['worst']:.3f} of plain, all {row['mean']:.3f}; {row['guard']}")
    noise = max(0.0, rows[0]["worst"] - 1.0)
    return 0 if all(row["worst"] <= 1.0 + ALLOWED_SHARE + noise for row in rows) else 1


def describe(name: str, side: Side, plain: Side) -> dict[str, Any]:
    """One row of the report."""
    found = ratios(side, plain, WINDOW_TOKENS)
    controller = side.controller
    return {
        "controller": name,
        "runs": len(found),
        "worst": max(found, default=float("nan")),
        "mean": sum(side.seconds) / sum(plain.seconds),
        "guard": asdict(controller.counters) if isinstance(controller, GuardedController) else None,
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--tokens", type=int, default=3000, help="tokens that every side writes (default: 3000)")
    parser.add_argument("--out", type=Path, default=Path("outputs/floor.json"), help="report (default: outputs/...)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    options = parser.parse_args()
    if options.tokens < 2 * WINDOW_TOKENS:
        parser.error(f"--tokens must be at least {2 * WINDOW_TOKENS}: a run has {WINDOW_TOKENS}")
    try:
        return run(options.tokens, options.out, not options.no_progress)
    except UserError as error:
        print(f"benchmarks.floor: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
