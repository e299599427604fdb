"""The plots of a report's rows. Bars and dots carry their paired 95% intervals."""

from __future__ import annotations

from matplotlib.figure import Figure

from agents.report.columns import label
from agents.report.drawing import ACCENT, BOUND, INK, QUIET, Axes, bare, canvas, name_rows, styled
from agents.report.rows import POLICY, Report, ReportRow

STATIC, BEST_STATIC = "static:", "best_static"
GROUP_GAP = 0.9  # rows
DASHES = (0, (4, 3))


def shown_rows(report: Report) -> list[ReportRow]:
    """Controllers, then bounds, fastest first; of the fixed settings only the best."""
    rows = report.sorted_rows()
    named = any(row.controller == BEST_STATIC for row in rows)
    static = [row for row in rows if row.controller.startswith(STATIC)]
    dropped = static if named else static[1:]
    return sorted((row for row in rows if row not in dropped), key=lambda row: row.bound)


def throughput(report: Report) -> Figure:
    """Tokens per second of every shown row; the interval is that of the speed-up over plain."""
    rows = shown_rows(report)
    places = _places(rows)
    with styled():
        figure = canvas(1.0 + 0.32 * (max(places) + 1))
        axes = bare(figure.add_subplot())
        speeds = [row.tokens_per_s for row in rows]
        plain = [row.tokens_per_s / row.speedup_vs_plain for row in rows]
        low = [max(0.0, s - row.ci95[0] * p) for s, row, p in zip(speeds, rows, plain, strict=True)]
        high = [max(0.0, row.ci95[1] * p - s) for s, row, p in zip(speeds, rows, plain, strict=True)]
        axes.barh(places, speeds, color=[_colour(row) for row in rows], height=0.68)
        axes.errorbar(speeds, places, xerr=[low, high], fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5)
        _name(axes, rows, places)
        widest = max(s + h for s, h in zip(speeds, high, strict=True))
        for place, row, speed, more in zip(places, rows, speeds, high, strict=True):
            text = f"{row.speedup_vs_plain:.2f}×"
            axes.text(speed + more + widest * 0.012, place, text, va="center", color=INK, fontsize=9)
        axes.set_xlim(0, widest * 1.1)
        axes.axvline(plain[0], color=INK, linewidth=0.8, linestyle=DASHES)
        axes.set_xlabel("tokens per second (× plain; whiskers: paired 95% interval of the speed-up)")
    return figure


def policy_ratios(report: Report) -> Figure | None:
    """Speed of the policy over every other shown controller's; None without a policy and somebody else."""
    rows = [row for row in shown_rows(report) if row.policy_ratio is not None and row.controller != POLICY]
    if not rows:
        return None
    places = _places(rows)
    with styled():
        figure = canvas(1.0 + 0.32 * (max(places) + 1))
        axes = bare(figure.add_subplot())
        for place, row in zip(places, rows, strict=True):
            assert row.policy_ratio is not None
            value, (low, high) = row.policy_ratio
            colour = BOUND if row.bound else ACCENT if low > 1.0 else INK
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
            axes.plot([value], [place], "o", color=colour, markersize=6)
        _name(axes, rows, places)
        axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=DASHES)
        axes.set_xlabel("policy ÷ controller, tokens per second (above 1: the policy is faster)")
    return figure


def _places(rows: list[ReportRow]) -> list[float]:
    """Heights of the rows, the first one highest; bounds stand apart."""
    down, place = [], 0.0
    for row, before in zip(rows, [rows[0], *rows], strict=False):
        place += GROUP_GAP if row.bound and not before.bound else 0.0
        down.append(place)
        place += 1.0
    return [down[-1] - place for place in down]


def _name(axes: Axes, rows: list[ReportRow], places: list[float]) -> None:
    name_rows(axes, places, [label(row) for row in rows], [row.controller == POLICY for row in rows])
    axes.set_ylim(-0.6, places[0] + 0.6)


def _colour(row: ReportRow) -> str:
    return BOUND if row.bound else ACCENT if row.controller == POLICY else QUIET
