"""A report on the console."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from agents.report.columns import NOTHING
from agents.report.markdown import headline, verdict
from agents.report.rows import POLICY, Report


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the rows, fastest first, the policy's highlighted."""
    console = console or Console()
    console.print(headline(report), highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False, caption="† a computed bound, not a controller")
    table.add_column("controller", no_wrap=True)
    for head in ("tokens/s", "× plain [95%]", "policy ÷ this [95%]", "stall s"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in report.sorted_rows():
        table.add_row(
            row.controller + (" †" if row.bound else "") + ("" if row.identical else "  TEXT DIFFERS"),
            f"{row.tokens_per_s:.2f}",
            _short(row.speedup_vs_plain, row.ci95),
            NOTHING if row.policy_ratio is None or row.controller == POLICY else _short(*row.policy_ratio),
            NOTHING if row.bound else f"{row.stall_s:.2f}",
            style="bold orange1" if row.controller == POLICY else "dim italic" if row.bound else None,
        )
    console.print(table)
    if sentence := verdict(report):
        console.print(sentence, highlight=False)


def _short(value: float, ci95: tuple[float, float]) -> str:
    """A value with its interval, short enough for a row of 80 characters."""
    return f"{value:.2f} [{ci95[0]:.2f}, {ci95[1]:.2f}]"
