"""Serve random requests under random decisions, and compare every text with the target's own: ``make test-exact``.

Every decision is random: draft, length, stop level, prefetch, KV, victim, and now and then a wait for a draft that is
not there; budgets are small, so drafts and KV are evicted all the time. In fp32 the recorded texts are the reference,
and where one differs, plain decoding by the same target is. In other dtypes plain decoding is, for every request.

Exit status: 0 = all texts are the target's own, 1 = some are not, 2 = it could not run. With ``--table`` only fp32 with
the guard decides.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.exactness.table import Cell, markdown, write_between
from benchmarks.exactness.tally import Tally
from benchmarks.exactness.workers import Facts, Settings, measure
from runtime.bundle import library_versions
from runtime.device import device_name
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 1
DTYPES = ("float32", "float16", "bfloat16", "int8")
TOKENS, CELL_TOKENS = 50_000, 2_000


def machine() -> dict[str, Any]:
    """What was measured on."""
    return {"device": device_name(), "cores": os.cpu_count(), "versions": library_versions("torch", "transformers")}


def single(settings: Settings, out: Path, progress: bool) -> int:
    """One run; returns the exit status."""
    tally, facts = measure(settings, progress)
    facts |= machine()
    write_json(out, {"schema": SCHEMA, "settings": settings.to_json(), "facts": facts, **tally.to_json()})
    print("\n".join(tally.lines()))
    print(f"written to {out}")
    return 0 if tally.exact else 1


def table(settings: Settings, dtypes: list[str], out: Path, document: Path | None, progress: bool) -> int:
    """All dtypes with and without the guard; returns the exit status. Every cell serves the same requests."""
    cells: list[Cell] = []
    facts: Facts = {}
    for dtype in dtypes:
        for guard in (True, False):
            cell = replace(settings, dtype=dtype, guard=guard)
            tally, found = measure(cell, progress)
            cells.append((cell, tally))
            facts = found | machine()
            _write_cells(out, cells, facts)
    text = markdown(cells, facts)
    print(text)
    if document is not None:
        write_between(document, text)
    return 0 if all(_may_pass(cell, tally) for cell, tally in cells) else 1


def _may_pass(settings: Settings, tally: Tally) -> bool:
    return tally.exact or settings.dtype != "float32" or not settings.guard


def _write_cells(out: Path, cells: list[Cell], facts: Facts) -> None:
    rows = [{"settings": settings.to_json(), **tally.to_json()} for settings, tally in cells]
    write_json(out, {"schema": SCHEMA, "facts": facts, "cells": rows})


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m benchmarks.exactness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = arguments.add_argument
    add(
        "--tokens",
        type=int,
        default=0,
        help=f"tokens to compare (default {TOKENS:,}; a cell of --table {CELL_TOKENS:,})",
    )
    add("--seed", type=int, default=0, help="of streams, budgets and decisions")
    add("--dtype", choices=DTYPES, default="float32", help="of the target")
    add("--guard", choices=("on", "off"), default="on", help="whether near-ties are decided again by a narrow forward")
    add("--workers", type=int, default=2, help="processes, each with a target of its own")
    add("--threads", type=int, default=1, help="torch threads of each process")
    add("--zoo", type=Path, default=Path("envs/zoo/smollm2"), help="folder of the zoo, with its traces")
    add("--target", default=None, help="another source of the target")
    add("--device", default="cpu", help="torch device")
    add("--table", action="store_true", help="all dtypes with and without the guard")
    add("--dtypes", default=",".join(DTYPES), help="of --table, separated by commas")
    add("--document", type=Path, default=None, help="Markdown file with the markers that --table writes between")
    add("--out", type=Path, default=None, help="file to write (default outputs/exactness.json or exactness-table.json)")
    add("--quiet", action="store_true", help="no progress bar")
    return arguments


def main() -> int:
    """Command line; returns the exit status."""
    options = parser().parse_args()
    name = "exactness-table" if options.table else "exactness"
    out = options.out or Path(f"outputs/{name}.json")
    settings = Settings(
        zoo=options.zoo,
        target=options.target,
        device=options.device,
        dtype=options.dtype,
        guard=options.guard == "on",
        tokens=options.tokens or (CELL_TOKENS if options.table else TOKENS),
        seed=options.seed,
        workers=max(1, options.workers),
        threads=max(1, options.threads),
    )
    try:
        if options.table:
            return table(settings, options.dtypes.split(","), out, options.document, not options.quiet)
        return single(settings, out, not options.quiet)
    except UserError as error:
        print(f"exactness: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
