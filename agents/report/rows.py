"""The rows of a report: one controller each, over all streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agents.bootstrap import RESAMPLES, Interval, ratio_interval
from agents.evaluation import speeds, tokens_per_s
from agents.serving import StreamResult

REPORT_SCHEMA = 1
POLICY, PLAIN, ORACLE = "policy", "plain", "oracle_clairvoyant"
BOUNDS = ("oracle_perfect", "oracle_clairvoyant", "oracle_budget")
"""Rows that are computed bounds, not controllers."""


class Ratio(NamedTuple):
    """A ratio of tokens per second with its paired 95% interval."""

    value: float
    ci95: tuple[float, float]

    @classmethod
    def of(cls, interval: Interval) -> Ratio:
        """From the bootstrap's interval."""
        return cls(interval.value, (interval.low, interval.high))


@dataclass(frozen=True)
class ReportRow:
    """One controller over all streams. Names are those of ``report.json``.

    Attributes:
        controller: Name.
        seed: Seed of streams and controller.
        requests: Requests served.
        tokens: Tokens committed.
        seconds: Time taken.
        tokens_per_s: The one over the other.
        ttft_s: Mean time to the first token.
        speedup_vs_plain: Tokens per second / those of ``plain`` on the same streams.
        ci95: Paired bootstrap interval of it.
        oracle_ratio: Tokens per second / those of ``oracle_clairvoyant``; None if there is no oracle.
        stall_s: Time spent waiting for loads.
        loads: Loads started.
        wasted_loads: Drafts dropped before they were used.
        mean_accepted: Accepted tokens per round with a draft; 0 without such rounds.
        acceptance: Accepted / verified tokens; 0 if none was verified.
        kv_hit_tokens: Prompt tokens taken from stored prefixes.
        peak_budget_bytes: Most of the budget in use.
        decide_us_p50: Median time of a decision, microseconds.
        decide_us_p99: 99th percentile of it.
        identical: Whether every text is the expected one, token for token.
        bound: Whether this is a computed bound, not a controller.
        policy_ratio: Tokens per second of ``policy`` / this row's, paired; None without a policy.
        illegal: Parts of decisions that fell back.
        guard_forwards: Forwards that re-decided a near-tie.
    """

    controller: str
    seed: int
    requests: int
    tokens: int
    seconds: float
    tokens_per_s: float
    ttft_s: float
    speedup_vs_plain: float
    ci95: tuple[float, float]
    oracle_ratio: float | None
    stall_s: float
    loads: int
    wasted_loads: int
    mean_accepted: float
    acceptance: float
    kv_hit_tokens: int
    peak_budget_bytes: int
    decide_us_p50: float
    decide_us_p99: float
    identical: bool
    bound: bool
    policy_ratio: Ratio | None
    illegal: int
    guard_forwards: int


@dataclass(frozen=True)
class Report:
    """A whole report.

    Attributes:
        suite: Name of the suite.
        device: Name of the device.
        simulated: Whether times come from a profile that was built rather than measured.
        git: Revision of the code.
        versions: Library versions.
        rows: In the order of evaluation.
        replay: Whether time was virtual (a profile's) rather than the wall clock's.
        streams: Streams each controller served.
        resamples: Of the bootstrap.
    """

    suite: str
    device: str
    simulated: bool
    git: str
    versions: Mapping[str, str]
    rows: tuple[ReportRow, ...]
    replay: bool
    streams: int
    resamples: int

    def sorted_rows(self) -> list[ReportRow]:
        """Fastest first."""
        return sorted(self.rows, key=lambda row: -row.tokens_per_s)


def build_rows(results: Sequence[StreamResult], resamples: int = RESAMPLES, seed: int = 0) -> tuple[ReportRow, ...]:
    """Sum results up, one row for each controller and seed, in order of appearance.

    Args:
        results: Of all controllers over the same streams; ``plain`` must be among them for every seed.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.

    Raises:
        ValueError: If ``plain`` is missing, or a controller served other streams than ``plain``.
    """
    groups: dict[tuple[str, int], list[StreamResult]] = {}
    for result in results:
        groups.setdefault((result.controller, result.seed), []).append(result)
    for (name, of_seed), group in groups.items():
        plain = groups.get((PLAIN, of_seed))
        if plain is None:
            raise ValueError(f"expected results of '{PLAIN}' with seed {of_seed} to compare '{name}' with, got none")
        if [result.stream for result in group] != [result.stream for result in plain]:
            raise ValueError(f"expected '{name}' to have served the streams of '{PLAIN}', got others")
    return tuple(
        _row(
            group, groups[PLAIN, of_seed], groups.get((POLICY, of_seed)), groups.get((ORACLE, of_seed)), resamples, seed
        )
        for (_, of_seed), group in groups.items()
    )


def _row(
    group: Sequence[StreamResult],
    plain: Sequence[StreamResult],
    policy: Sequence[StreamResult] | None,
    oracle: Sequence[StreamResult] | None,
    resamples: int,
    seed: int,
) -> ReportRow:
    first, own = group[0], speeds(group)
    speedup = ratio_interval(own, speeds(plain), resamples, seed)
    against = None if policy is None else Ratio.of(ratio_interval(speeds(policy), own, resamples, seed))
    speculative = sum(result.speculative_rounds for result in group)
    drafted, accepted = sum(result.drafted for result in group), sum(result.accepted for result in group)
    decide_us = [value for result in group for value in result.decide_us] or [0.0]
    return ReportRow(
        controller=first.controller,
        seed=first.seed,
        requests=sum(result.requests for result in group),
        tokens=sum(result.tokens for result in group),
        seconds=sum(result.seconds for result in group),
        tokens_per_s=tokens_per_s(group),
        ttft_s=float(np.mean([value for result in group for value in result.ttft_s] or [0.0])),
        speedup_vs_plain=speedup.value,
        ci95=(speedup.low, speedup.high),
        oracle_ratio=None if oracle is None else tokens_per_s(group) / tokens_per_s(oracle),
        stall_s=sum(result.stall_s for result in group),
        loads=sum(result.loads for result in group),
        wasted_loads=sum(result.wasted_loads for result in group),
        mean_accepted=accepted / speculative if speculative else 0.0,
        acceptance=accepted / drafted if drafted else 0.0,
        kv_hit_tokens=sum(result.kv_hit_tokens for result in group),
        peak_budget_bytes=max(result.peak_budget_bytes for result in group),
        decide_us_p50=float(np.percentile(decide_us, 50)),
        decide_us_p99=float(np.percentile(decide_us, 99)),
        identical=all(result.identical for result in group),
        bound=first.controller in BOUNDS,
        policy_ratio=against,
        illegal=sum(result.illegal for result in group),
        guard_forwards=sum(result.guard_forwards for result in group),
    )
