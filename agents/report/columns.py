"""The columns that people see: one table for console, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agents.report.rows import Ratio, ReportRow

NOTHING = "–"


class Column(NamedTuple):
    """A column: its head, what it means, and a row's cell."""

    head: str
    meaning: str
    cell: Callable[[ReportRow], str]


def interval(value: float, ci95: tuple[float, float]) -> str:
    """A value with its interval."""
    return f"{value:.3f} [{ci95[0]:.3f}, {ci95[1]:.3f}]"


def _ratio(ratio: Ratio | None) -> str:
    return NOTHING if ratio is None else interval(*ratio)


COLUMNS: tuple[Column, ...] = (
    Column("controller", "who decided; bounds are computed, nothing can run them", lambda r: label(r)),
    Column("tokens/s", "committed tokens per second, prefill included", lambda r: f"{r.tokens_per_s:.2f}"),
    Column("× plain [95%]", "speed over plain decoding's", lambda r: interval(r.speedup_vs_plain, r.ci95)),
    Column("policy ÷ this [95%]", "speed of the policy over this row's, paired", lambda r: _ratio(r.policy_ratio)),
    Column(
        "of clairvoyant",
        "speed over the clairvoyant bound's",
        lambda r: NOTHING if r.oracle_ratio is None else f"{r.oracle_ratio:.3f}",
    ),
    Column("TTFT s", "mean time to the first token", lambda r: f"{r.ttft_s:.3f}"),
    Column(
        "accepted",
        "accepted tokens per round with a draft",
        lambda r: f"{r.mean_accepted:.2f}" if r.acceptance else NOTHING,
    ),
    Column("acceptance", "accepted / verified tokens", lambda r: f"{r.acceptance:.3f}" if r.acceptance else NOTHING),
    Column("stall s", "time spent waiting for loads", lambda r: NOTHING if r.bound else f"{r.stall_s:.2f}"),
    Column(
        "loads (wasted)",
        "loads started (drafts dropped before they were used)",
        lambda r: NOTHING if r.bound else f"{r.loads} ({r.wasted_loads})",
    ),
    Column("KV hits", "prompt tokens taken from stored prefixes", lambda r: f"{r.kv_hit_tokens:,}"),
    Column(
        "peak MB",
        "most of the budget in use, in 10⁶ bytes",
        lambda r: NOTHING if r.bound else f"{r.peak_budget_bytes / 1e6:.1f}",
    ),
    Column(
        "decide µs p50 / p99",
        "wall time of one decision on this machine",
        lambda r: NOTHING if r.bound else f"{r.decide_us_p50:.0f} / {r.decide_us_p99:.0f}",
    ),
    Column("identical", "every text is the target's own, token for token", lambda r: "yes" if r.identical else "NO"),
)


def label(row: ReportRow) -> str:
    """How a row is called."""
    return f"{row.controller} (bound)" if row.bound else row.controller
