"""The tables of the page: the short one that explains itself, and the full one."""

from __future__ import annotations

from html import escape

from agents.report.charts import shown_rows
from agents.report.columns import COLUMNS, NOTHING, label
from agents.report.descriptions import describe
from agents.report.rows import POLICY, Ratio, Report, ReportRow

SHORT_HEADS = ("controller", "speed, × plain", "policy ÷ this")


def short_table(report: Report) -> str:
    """Controller with its description, and two ratios with their intervals; of the fixed settings only the best."""
    head = "".join(f"<th>{escape(text)}</th>" for text in SHORT_HEADS)
    body = "".join(_short_row(row) for row in shown_rows(report))
    return f'<table class="short"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def full_table(report: Report) -> str:
    """Every row and column."""
    head = "".join(f'<th title="{escape(column.meaning)}">{escape(column.head)}</th>' for column in COLUMNS)
    body = []
    for row in report.sorted_rows():
        cells = [f"<td>{escape(column.cell(row))}</td>" for column in COLUMNS]
        if not row.identical:
            cells[-1] = cells[-1].replace("<td>", '<td class="wrong">')
        body.append(f'<tr class="{_kind(row)}">{"".join(cells)}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def meanings() -> str:
    """What the columns of the full table are."""
    terms = "".join(f"<dt>{escape(c.head)}</dt><dd>{escape(c.meaning)}</dd>" for c in COLUMNS)
    return f"<dl>{terms}</dl>"


def _short_row(row: ReportRow) -> str:
    against = None if row.controller == POLICY else row.policy_ratio
    name = f"<b>{escape(label(row))}</b><small>{escape(describe(row.controller))}</small>"
    return (
        f'<tr class="{_kind(row)}"><td>{name}</td><td>{_cell(Ratio(row.speedup_vs_plain, row.ci95))}</td>'
        f"<td>{_cell(against)}</td></tr>"
    )


def _cell(ratio: Ratio | None) -> str:
    if ratio is None:
        return NOTHING
    return f"<b>{ratio.value:.2f}</b><small>{ratio.ci95[0]:.2f} – {ratio.ci95[1]:.2f}</small>"


def _kind(row: ReportRow) -> str:
    return "policy" if row.controller == POLICY else "bound" if row.bound else ""
