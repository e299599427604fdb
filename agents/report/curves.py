"""Curves of a study: one line a controller, with its interval as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from agents.report.drawing import ACCENT, INK, SERIES_COLOURS, bare, canvas, styled
from agents.report.rows import POLICY

MARKERS = ("s", "^", "D", "v", "P", "X", "p")
FEW = 9
"""So many values of x are all named on the axis."""


class Series(NamedTuple):
    """One line: points with the ends of their intervals, all of one length."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class LineFigure(NamedTuple):
    """What a figure of curves shows.

    Attributes:
        title: Above the axes.
        x_label: What x is, with its unit.
        y_label: What y is, with its unit.
        series: Lines by name; the policy's stands out.
        log_x: Whether x grows by factors.
        level: A value of y to compare with, dashed, e.g. 1 for a ratio; None = none.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Series]
    log_x: bool = False
    level: float | None = None


def curves(shown: LineFigure) -> Figure:
    """Draw lines with their bands; the legend is in the order in which the lines end.

    Raises:
        ValueError: If there is no line, or one has no points or unequal lengths.
    """
    if not shown.series:
        raise ValueError(f"figure '{shown.title}': expected at least one series, got none")
    for name, line in shown.series.items():
        if not line.x or len({len(values) for values in line}) != 1:
            raise ValueError(f"series '{name}': expected as many x, y, low and high, got {[len(v) for v in line]}")
    others = [name for name in shown.series if name != POLICY]
    with styled():
        figure = canvas(4.4)
        axes = bare(figure.add_subplot(), grid="both")
        for name, line in shown.series.items():
            index = others.index(name) % len(SERIES_COLOURS) if name != POLICY else 0
            colour, marker = (ACCENT, "o") if name == POLICY else (SERIES_COLOURS[index], MARKERS[index])
            strong = name == POLICY
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.14, linewidth=0.0)
            axes.plot(
                line.x, line.y, color=colour, marker=marker, markersize=5, linewidth=2.6 if strong else 1.6,
                label=name, zorder=3 if strong else 2,
            )  # fmt: skip
        if shown.level is not None:
            axes.axhline(shown.level, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set(xlabel=shown.x_label, ylabel=shown.y_label, title=shown.title)
        if shown.log_x:
            axes.set_xscale("log")
        values = sorted({x for line in shown.series.values() for x in line.x})
        if len(values) <= FEW:
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.set_xticks([], minor=True)
        handles = {line.get_label(): line for line in axes.get_lines() if line.get_label() in shown.series}
        order = sorted(shown.series, key=lambda name: -shown.series[name].y[-1])
        figure.legend(handles=[handles[name] for name in order], loc="outside right upper", frameon=False)
    return figure
