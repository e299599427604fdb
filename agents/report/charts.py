"""The plots of a report. Bars and dots carry their paired 95% intervals."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from agents.report.columns import label
from agents.report.rows import POLICY, Report, ReportRow

ACCENT, QUIET, BOUND, INK, GRID = "#d9480f", "#5c7cfa", "#adb5bd", "#343a40", "#e9ecef"
STYLE: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "specpilot",
}


def throughput(report: Report) -> Figure:
    """Tokens per second of every row; the interval is that of the speed-up over plain."""
    rows = report.sorted_rows()[::-1]
    with rc_context(STYLE):
        figure, axes = _canvas(len(rows))
        speeds = [row.tokens_per_s for row in rows]
        plain = [row.tokens_per_s / row.speedup_vs_plain for row in rows]
        low = [max(0.0, s - row.ci95[0] * p) for s, row, p in zip(speeds, rows, plain, strict=True)]
        high = [max(0.0, row.ci95[1] * p - s) for s, row, p in zip(speeds, rows, plain, strict=True)]
        axes.barh(range(len(rows)), speeds, color=[_colour(row) for row in rows], height=0.68)
        axes.errorbar(speeds, range(len(rows)), xerr=[low, high], fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5)
        _name_rows(axes, rows)
        widest = max(s + h for s, h in zip(speeds, high, strict=True))
        for place, (row, speed, more) in enumerate(zip(rows, speeds, high, strict=True)):
            text = f"{row.speedup_vs_plain:.2f}×"
            axes.text(speed + more + widest * 0.012, place, text, va="center", color=INK, fontsize=9)
        axes.set_xlim(0, widest * 1.1)
        axes.axvline(plain[0], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlabel("tokens per second (× plain; whiskers: paired 95% interval of the speed-up)")
    return figure


def policy_ratios(report: Report) -> Figure | None:
    """Speed of the policy over every other controller's; None without a policy and somebody else."""
    rows = [row for row in report.sorted_rows() if row.policy_ratio is not None and row.controller != POLICY]
    if not rows:
        return None
    with rc_context(STYLE):
        figure, axes = _canvas(len(rows))
        for place, row in enumerate(rows):
            assert row.policy_ratio is not None
            value, (low, high) = row.policy_ratio
            colour = BOUND if row.bound else ACCENT if low > 1.0 else INK
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
            axes.plot([value], [place], "o", color=colour, markersize=6)
        _name_rows(axes, rows)
        axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlabel("policy ÷ controller, tokens per second (above 1: the policy is faster)")
    return figure


def to_svg(figure: Figure) -> str:
    """A figure as an SVG element, the same for the same figure."""
    text = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _canvas(rows: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8.6, 1.0 + 0.34 * rows), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return figure, axes


def _name_rows(axes: Any, rows: list[ReportRow]) -> None:
    axes.set_yticks(range(len(rows)), [label(row) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    for row, text in zip(rows, axes.get_yticklabels(), strict=True):
        if row.controller == POLICY:
            text.set_color(ACCENT)
            text.set_fontweight("bold")


def _colour(row: ReportRow) -> str:
    return BOUND if row.bound else ACCENT if row.controller == POLICY else QUIET
