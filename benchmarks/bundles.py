"""Bundles against each other on the real decoder, say before and after more training.

    python -m benchmarks.bundles BUNDLE [BUNDLE ...] [--tokens N] [--override KEY=VALUE] [--out FILE]

Plain decoding and the policy of every bundle, unguarded, answer the same held-out requests in turn. Asserts that all
texts are the same; gives tokens per second, and ratios with paired 95% intervals over streams.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.bootstrap import ratio_interval
from agents.evaluation import speeds
from benchmarks.turns import Side, open_live, serve_tokens
from runtime.bundle import library_versions, read_bundle
from runtime.control.static import plain_controller
from runtime.device import device_name
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 1
RATIOS = ("speedup_vs_plain", "ratio_to_first")


def rows_of(sides: dict[str, Side]) -> list[dict[str, Any]]:
    """One row a side: speed, and its ratio to plain decoding and to the first bundle."""
    by_name = {name: speeds(side.results) for name, side in sides.items()}
    plain, first = by_name["plain"], list(by_name.values())[1]
    return [
        {
            "controller": name,
            "requests": len(sides[name].tokens),
            "tokens_per_s": sum(each.tokens) / sum(each.seconds),
            "speedup_vs_plain": ratio_interval(each, plain)._asdict(),
            "ratio_to_first": ratio_interval(each, first)._asdict(),
        }
        for name, each in by_name.items()
    ]


def run(bundles: Sequence[Path], tokens: int, out: Path, progress: bool, overrides: Sequence[str]) -> None:
    """Measure and report."""
    live = open_live(overrides)
    sides = {"plain": Side(plain_controller(len(live.models.zoo.drafts)))}
    sides |= {str(folder): Side(read_bundle(folder).controller()) for folder in bundles}
    serve_tokens(live, list(sides.values()), tokens, progress)
    rows = rows_of(sides)
    facts = {"device": device_name(), "versions": library_versions("torch", "transformers")}
    write_json(out, {"schema": SCHEMA, **facts, "tokens": tokens, "overrides": list(overrides), "rows": rows})
    for row in rows:
        plain, first = ("{value:.3f} [{low:.3f}, {high:.3f}]".format(**row[key]) for key in RATIOS)
        print(f"{row['controller']:<40} {row['tokens_per_s']:6.2f} tokens/s, {plain} x plain, {first} x first")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bundles", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("bundles", type=Path, nargs="+", help="folders of bundles, the one to compare with first")
    parser.add_argument("--tokens", type=int, default=3000, help="tokens that every side writes (default: 3000)")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="as train.py takes them")
    parser.add_argument("--out", type=Path, default=Path("outputs/bundles.json"), help="report (default: outputs/...)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    try:
        run(options.bundles, options.tokens, options.out, not options.no_progress, options.override)
    except UserError as error:
        print(f"benchmarks.bundles: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
