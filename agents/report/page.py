"""A report as one HTML page that needs nothing beside it: no script, no file, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from agents.report.charts import policy_ratios, throughput
from agents.report.drawing import to_svg
from agents.report.markdown import footnote
from agents.report.opening import INTRODUCTION, facts, result, title
from agents.report.page_style import PAGE_STYLE
from agents.report.picture import Picture
from agents.report.rows import Report
from agents.report.tables import full_table, meanings, short_table
from agents.report.words import WORDS

THROUGHPUT = (
    "Longer is faster. Orange: the learned policy; grey: computed bounds that nothing can run; dashed: the large model "
    "alone. Of the settings that never change only the best is shown."
)
RATIOS = (
    "Right of the line the policy is faster than that controller, left of it slower; where the bar crosses the line "
    "these streams cannot tell. Orange: faster for sure; grey: bounds."
)
SHORT = (
    "Fastest first; small numbers are 95% intervals. The last column is the policy's speed over the row's: above 1 the "
    "policy is faster."
)


def to_html(report: Report, pictures: Sequence[Picture] = ()) -> str:
    """The whole page; pictures stand between the charts of the rows and the full table."""
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS.items())
    sections = [
        _section("Who is how fast", SHORT, short_table(report)),
        *(_figure(picture) for picture in (*row_pictures(report), *pictures)),
        _section("All numbers", "", f'<div class="scroll">{full_table(report)}</div>{meanings()}'),
        _section("Words", "", f"<dl>{words}</dl>"),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>specpilot: {escape(report.suite)}</title><style>{PAGE_STYLE}</style></head><body><main>\n"
        f"{_opening(report)}\n"
        + "\n".join(sections)
        + f'\n<p class="quiet">{escape(footnote(report))}</p>\n</main></body></html>\n'
    )


def row_pictures(report: Report) -> tuple[Picture, ...]:
    """The charts that every report has: throughput, and the policy against each if there is one."""
    ratios = policy_ratios(report)
    shown = Picture("Throughput", THROUGHPUT, throughput(report))
    return (shown,) if ratios is None else (shown, Picture("The policy against each", RATIOS, ratios))


def _opening(report: Report) -> str:
    tiles = "".join(f"<div><dt>{escape(f.name)}</dt><dd>{escape(f.text)}</dd></div>" for f in facts(report))
    return (
        f'<header><p class="quiet">specpilot, suite “{escape(report.suite)}”</p><h1>{escape(title(report))}</h1>'
        f'<p class="verdict">{escape(result(report))}</p><dl class="facts">{tiles}</dl>'
        f"<p>{escape(INTRODUCTION)}</p></header>"
    )


def _section(heading: str, caption: str, content: str) -> str:
    note = f'<p class="quiet">{escape(caption)}</p>' if caption else ""
    return f"<section><h2>{escape(heading)}</h2>{note}{content}</section>"


def _figure(picture: Picture) -> str:
    svg = f'<div class="scroll">{to_svg(picture.figure, picture.title)}</div>'
    return _section(picture.title, picture.caption, svg)
