"""Regret as a figure: for every controller where the time went that the clairvoyant bound does not need."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from agents.regret import CAUSES, Regret
from agents.report.drawing import INK, SERIES_COLOURS, Axes, bare, canvas, name_rows, styled
from agents.report.rows import POLICY

COLOURS = dict(zip(CAUSES, SERIES_COLOURS, strict=True))
LEGEND_IN = 0.24
"""Height of a line of the legend."""
CAPTION = (
    "Time beyond the bound that knows every guess in advance, in percent of the bound's own time, by what it was lost "
    "to. Shorter is better; a part left of zero is time gained."
)


def regret_bars(regrets: Sequence[Regret]) -> Figure:
    """Stacked bars in percent of the bound's time, the least regret on top."""
    ordered = sorted(regrets, key=lambda r: r.seconds / r.bound_s, reverse=True)
    places = [float(i) for i in range(len(ordered))]
    with styled():
        figure = canvas(0.9 + 0.32 * len(ordered) + LEGEND_IN * len(CAUSES))
        axes = bare(figure.add_subplot())
        low, high = _stack(axes, ordered, places)
        name_rows(axes, places, [r.controller for r in ordered], [r.controller == POLICY for r in ordered])
        widest = max(*high, 1e-9)
        for place, regret, end in zip(places, ordered, high, strict=True):
            total = 100.0 * (regret.seconds / regret.bound_s - 1.0)
            axes.text(end + 0.012 * widest, place, f"{total:+.0f}%", va="center", fontsize=9)
        axes.set_xlim(min(low), 1.1 * widest)
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.set_xlabel("time beyond the clairvoyant bound, percent of its time")
        keys = [Patch(color=COLOURS[cause], label=f"{_spoken(cause)}: {CAUSES[cause]}") for cause in CAUSES]
        figure.legend(handles=keys, loc="outside lower left", frameon=False, fontsize=9, handlelength=1.2)
    return figure


def _stack(axes: Axes, ordered: Sequence[Regret], places: list[float]) -> tuple[list[float], list[float]]:
    """Draw the parts, losses to the right of zero and gains to the left; where each bar begins and ends."""
    low, high = [0.0] * len(ordered), [0.0] * len(ordered)
    for cause, colour in COLOURS.items():
        widths = [100.0 * regret.parts.get(cause, 0.0) / regret.bound_s for regret in ordered]
        lefts = [h if width >= 0.0 else lo for width, h, lo in zip(widths, high, low, strict=True)]
        axes.barh(places, widths, left=lefts, color=colour, height=0.68, label=cause)
        high = [h + max(0.0, width) for h, width in zip(high, widths, strict=True)]
        low = [lo + min(0.0, width) for lo, width in zip(low, widths, strict=True)]
    return low, high


def _spoken(cause: str) -> str:
    return cause.replace("_", " ")
