"""The files of a report: ``report.json``, ``.md`` and ``.html``, and ``throughput.png``; each is whole or absent."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.report.charts import throughput
from agents.report.markdown import to_markdown
from agents.report.page import to_html
from agents.report.rows import REPORT_SCHEMA, Report
from runtime.files import write_json, written_whole

PNG_DPI = 160


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


def write_report(report: Report, folder: Path) -> Path:
    """Write all files of a report into a folder; returns the path of ``report.json``."""
    path = folder / "report.json"
    with written_whole(folder / "throughput.png") as aside:
        throughput(report).savefig(aside, format="png", dpi=PNG_DPI)
    for name, text in (("report.md", to_markdown(report)), ("report.html", to_html(report))):
        with written_whole(folder / name) as aside:
            aside.write_text(text, encoding="utf-8")
    write_json(path, to_json(report))
    return path
