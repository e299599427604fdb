"""The table of dtypes, with the guard and without: measured, and written between the markers of a document."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.exactness.tally import Tally
from benchmarks.exactness.workers import Settings
from runtime.errors import UserError
from runtime.files import written_whole

BEGIN, END = "<!-- exactness:begin -->", "<!-- exactness:end -->"
HEAD = (
    "| dtype | guard | tokens compared | requests | texts that differ | first difference: gap, median and largest | "
    "guard forwards / 1,000 tokens | guard, share of time | tokens/s |\n|---|---|---|---|---|---|---|---|---|"
)

Cell = tuple[Settings, Tally]


def row(settings: Settings, tally: Tally) -> str:
    """One line of the table."""
    differing = tally.of_kind("draft")
    gaps = [difference.gap for difference in differing]
    apart = f"{statistics.median(gaps):.3g}, {max(gaps):.3g}" if gaps else "–"
    guard = (f"{tally.guards_per_1000:.2f}", f"{tally.guard_share:.2%}") if settings.guard else ("–", "–")
    speed = tally.committed / tally.serving_s if tally.serving_s else 0.0
    cells = (
        settings.dtype,
        "on" if settings.guard else "off",
        f"{tally.tokens:,}",
        f"{tally.requests:,}",
        f"{len(differing)}",
        apart,
        *guard,
        f"{speed:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def markdown(cells: Sequence[Cell], facts: dict[str, Any]) -> str:
    """The table with what it was measured on."""
    settings = cells[0][0]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if name != "specpilot")
    where = (
        f"{facts['device']} ({facts['cpu_capability']}), {settings.workers} processes of {settings.threads} threads, "
        f"attention {facts['attention']}, {versions}, seed {settings.seed}"
    )
    controls = sum(tally.controls for _, tally in cells)
    repeats = sum(len(tally.of_kind("repeat")) for _, tally in cells)
    traces = sum(len(tally.of_kind("trace")) for _, tally in cells)
    note = (
        f"Controls: {controls} requests decoded plain twice, {repeats} unlike themselves; {traces} texts of fp32 plain "
        "decoding unlike the recorded ones."
    )
    return "\n".join((f"Measured on {where}.", "", HEAD, *(row(*cell) for cell in cells), "", note))


def write_between(path: Path, text: str) -> None:
    """Replace what is between the markers of a document.

    Raises:
        UserError: If the document has no markers.
    """
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path}: expected the markers {BEGIN} and {END}: put them where the table belongs")
    with written_whole(path) as aside:
        aside.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
