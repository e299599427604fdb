"""Counters between two moments."""

from __future__ import annotations

from runtime.cli.counts import describe, since, snapshot
from runtime.core import Counters


def test_what_was_counted_since_a_moment() -> None:
    counters = Counters(rounds=3, drafted=9, accepted=4, committed=8, peak_budget_bytes=50, ttft_s=[0.5])
    before = snapshot(counters)
    assert before == counters and before.ttft_s is not counters.ttft_s
    counters.rounds, counters.drafted, counters.accepted, counters.committed = 5, 13, 7, 14
    counters.peak_budget_bytes = 60
    counters.ttft_s.append(0.25)
    assert since(before, counters) == Counters(
        rounds=2, drafted=4, accepted=3, committed=6, peak_budget_bytes=60, ttft_s=[0.25]
    )
    assert describe(since(before, counters), 6, 2.0, "plain")["ttft_s"] == 0.25
    assert describe(counters, 14, 2.0, "plain")["tokens_per_s"] == 7.0


def test_nothing_was_counted_without_a_request() -> None:
    assert describe(since(Counters(), Counters()), 0, 1.0, "plain")["ttft_s"] is None
