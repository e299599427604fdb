"""The files of a report: ``report.json``, ``.md``, ``.html`` and a PNG of every picture; each is whole or absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.report.charts import throughput
from agents.report.drawing import save_png
from agents.report.markdown import to_markdown
from agents.report.page import to_html
from agents.report.picture import Picture
from agents.report.rows import REPORT_SCHEMA, Report
from runtime.files import write_json, written_whole

THROUGHPUT = "throughput"


def to_json(report: Report) -> dict[str, Any]:
    """What ``report.json`` holds."""
    data = asdict(report)
    data["versions"] = dict(report.versions)
    rows = []
    for row in report.rows:
        ratio = row.policy_ratio
        against = None if ratio is None else {"value": ratio.value, "ci95": list(ratio.ci95)}
        rows.append({**asdict(row), "ci95": list(row.ci95), "policy_ratio": against})
    return {"schema": REPORT_SCHEMA, **data, "rows": rows}


def write_report(report: Report, folder: Path, pictures: Sequence[Picture] = ()) -> Path:
    """Write all files of a report into a folder; returns the path of ``report.json``.

    Args:
        report: The report.
        folder: Where to.
        pictures: More figures for the page; each is written as a PNG file of its own too.

    Raises:
        ValueError: If two pictures, or a picture and the throughput, would have the same file.
    """
    figures = {THROUGHPUT: throughput(report)}
    for picture in pictures:
        if picture.slug in figures:
            raise ValueError(f"picture '{picture.title}': expected a title of its own, another is '{picture.slug}' too")
        figures[picture.slug] = picture.figure
    for name, figure in figures.items():
        with written_whole(folder / f"{name}.png") as aside:
            save_png(figure, aside)
    for name, text in (("report.md", to_markdown(report)), ("report.html", to_html(report, pictures))):
        with written_whole(folder / name) as aside:
            aside.write_text(text, encoding="utf-8")
    path = folder / "report.json"
    write_json(path, to_json(report))
    return path
