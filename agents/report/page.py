"""A report as one HTML page that needs nothing beside it."""

from __future__ import annotations

from html import escape

from agents.report.charts import policy_ratios, throughput, to_svg
from agents.report.columns import COLUMNS
from agents.report.markdown import footnote, headline, verdict
from agents.report.rows import POLICY, Report

STYLE = """
:root { color-scheme: light; --ink: #212529; --quiet: #868e96; --line: #e9ecef; --accent: #d9480f; }
* { box-sizing: border-box; }
body { margin: 0; background: #f8f9fa; color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 12px; }
p { margin: 0 0 8px; } .quiet, dd { color: var(--quiet); } .verdict { font-size: 17px; margin: 14px 0 24px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px;
  margin-bottom: 20px; }
svg { width: 100%; height: auto; max-width: 900px; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; white-space: nowrap; width: 100%; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th { color: var(--quiet); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
tr.policy td { background: #fff4e6; } tr.policy td:first-child { color: var(--accent); font-weight: 700; }
tr.bound td { color: var(--quiet); font-style: italic; } .wrong { color: #c92a2a; font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; font-size: 13px; }
dd { margin: 0; }
"""


def to_html(report: Report) -> str:
    """The whole page."""
    ratios = policy_ratios(report)
    sections = [_section("Throughput", to_svg(throughput(report)))]
    if ratios is not None:
        sections.append(_section("The policy against each", to_svg(ratios)))
    sections.append(_section("All controllers", f'<div class="scroll">{_table(report)}</div>'))
    meanings = "".join(f"<dt>{escape(c.head)}</dt><dd>{escape(c.meaning)}</dd>" for c in COLUMNS)
    sections.append(_section("Columns", f"<dl>{meanings}</dl>"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>specpilot: {escape(report.suite)}</title><style>{STYLE}</style></head><body><main>\n"
        f'<h1>Evaluation: {escape(report.suite)}</h1><p class="quiet">{escape(headline(report))}</p>\n'
        f'<p class="verdict">{escape(verdict(report))}</p>\n'
        + "\n".join(sections)
        + f'\n<p class="quiet">{escape(footnote(report))}</p>\n</main></body></html>\n'
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _table(report: Report) -> str:
    head = "".join(f'<th title="{escape(column.meaning)}">{escape(column.head)}</th>' for column in COLUMNS)
    body = []
    for row in report.sorted_rows():
        kind = "policy" if row.controller == POLICY else "bound" if row.bound else ""
        cells = [f"<td>{escape(column.cell(row))}</td>" for column in COLUMNS]
        if not row.identical:
            cells[-1] = cells[-1].replace("<td>", '<td class="wrong">')
        body.append(f'<tr class="{kind}">{"".join(cells)}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
