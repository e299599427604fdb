"""A report as Markdown."""

from __future__ import annotations

from agents.report.columns import COLUMNS
from agents.report.rows import POLICY, Report


def headline(report: Report) -> str:
    """One sentence: what was measured where."""
    how = "virtual time of a profile" if report.replay else "wall clock"
    built = ", profile built, not measured" if report.simulated else ""
    return f"Suite {report.suite} on {report.device} ({how}{built}), {report.streams} request streams per controller."


def verdict(report: Report) -> str:
    """One sentence on the policy against plain and the best other controller; empty without a policy."""
    rows = report.sorted_rows()
    policy = next((row for row in rows if row.controller == POLICY), None)
    if policy is None:
        return ""
    low, high = policy.ci95
    sentence = f"The policy decodes {policy.speedup_vs_plain:.2f} times as fast as plain (95%: {low:.2f} to {high:.2f})"
    best = next((row for row in rows if not row.bound and row.controller != POLICY), None)
    if best is None or best.policy_ratio is None:
        return sentence + "."
    value, (low, high) = best.policy_ratio
    return f"{sentence}, {value:.3f} times as fast as the best other, {best.controller} (95%: {low:.3f} to {high:.3f})."


def to_markdown(report: Report) -> str:
    """The whole page."""
    lines = [f"# Evaluation: {report.suite}", "", headline(report), "", verdict(report), ""]
    lines.append("| " + " | ".join(column.head for column in COLUMNS) + " |")
    lines.append("|---" + "|---:" * (len(COLUMNS) - 1) + "|")
    for row in report.sorted_rows():
        cells = [column.cell(row) for column in COLUMNS]
        if row.controller == POLICY:
            cells[0] = f"**{cells[0]}**"
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"* *{column.head}*: {column.meaning}" for column in COLUMNS), "", footnote(report), ""]
    return "\n".join(lines)


def footnote(report: Report) -> str:
    """Where the numbers come from."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"Intervals: paired bootstrap over streams, {report.resamples:,} resamples. Code {report.git}" + (
        f"; {versions}." if versions else "."
    )
