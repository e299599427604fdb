"""What a run of ``benchmarks.load`` saw, judged and told."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.clients import Tally
from benchmarks.probes import Probe, agreement
from benchmarks.resident import Growth, Sample, growth
from runtime.bundle import library_versions
from runtime.device import device_name

SCHEMA = 1
GROWTH_LIMIT = 0.02
"""Of the memory after the warm-up: the last quarter of the run may lie so much above the first."""
FAILED = tuple(f'specpilot_requests_total{{outcome="{name}"}}' for name in ("failed", "timeout", "shutting_down"))
FIRST, LAST, RESTARTED = "first", "last", "restarted"
"""When the probes were asked."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The command line of ``benchmarks.load``; see its ``--help``."""

    bundle: Path
    requests: int
    clients: int
    minutes: float
    seed: int
    queue: int
    kv_folder: Path
    serve: tuple[str, ...]
    log: Path


@dataclasses.dataclass
class Observed:
    """What was seen.

    Attributes:
        tally: What the clients got.
        samples: Memory of the server while they asked.
        probes: Answers to the same questions, by when they were asked; none = the server did not answer.
        metrics: The server's own, before it was killed.
        kv_disk_bytes: Stored KV that it found when it was started again.
    """

    tally: Tally
    samples: list[Sample]
    probes: dict[str, list[Probe]]
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    kv_disk_bytes: int = 0


def judge(requests: int, seen: Observed, grown: Growth) -> dict[str, bool]:
    """Which promises were kept."""
    first, last, restarted = (seen.probes.get(when, []) for when in (FIRST, LAST, RESTARTED))
    texts = {probe.prompt: probe.text for probe in first}
    answered = seen.tally.done.total() == requests and not seen.tally.failed
    return {
        "served": answered and bool(last) and not any(seen.metrics.get(name, 0) for name in FAILED),
        "same_text": not seen.tally.unlike
        and all(probe.text == texts[probe.prompt] for probe in (*first, *last, *restarted)),
        "same_guesses": bool(last) and agreement(first, last).contradictions == 0,
        "flat": grown.share < GROWTH_LIMIT,
        "restarted": bool(restarted),
    }


def described(options: Options, seen: Observed) -> dict[str, Any]:
    """The report as JSON; times in seconds, sizes in bytes."""
    grown, tally = growth(seen.samples), seen.tally
    kept = judge(options.requests, seen, grown)
    agreed = agreement(seen.probes.get(FIRST, []), seen.probes.get(LAST, []))
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {
        "schema": SCHEMA,
        "device": device_name(),
        "versions": library_versions("torch", "transformers", "openai"),
        "asked": asked,
        "seconds": seen.samples[-1].seconds,
        "answers": dict(tally.done),
        "tokens": tally.tokens,
        "busy": tally.busy,
        "failed": tally.failed,
        "failures": tally.failures,
        "unlike": tally.unlike,
        "answer_s": quantiles(tally.seconds),
        "probes": {when: [_told(probe) for probe in probes] for when, probes in seen.probes.items()},
        "guesses": agreed._asdict(),
        "memory": {**grown._asdict(), "limit": GROWTH_LIMIT, "samples": [list(one) for one in seen.samples]},
        "kv_disk_bytes_after_kill": seen.kv_disk_bytes,
        "metrics": {name: value for name, value in seen.metrics.items() if name.startswith("specpilot_")},
        "promises": kept,
        "passed": all(kept.values()),
    }


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 90% and 99% quantile; none of fewer than two."""
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


def summary(report: dict[str, Any]) -> str:
    """The report for people."""
    memory, guesses, waits = report["memory"], report["guesses"], report["answer_s"]
    rates = [f"{when} {_acceptance(probes):.3f}" for when, probes in report["probes"].items()]
    lines = [
        f"{sum(report['answers'].values())} answers in {report['seconds'] / 60:.1f} minutes, "
        f"{report['failed']} failures, {report['busy']} times told to come back later (429); "
        f"an answer took {waits.get('p50', 0.0):.1f} s (median), {waits.get('p99', 0.0):.1f} s (99%)",
        f"memory: {memory['first_bytes'] / 1e6:.1f} MB after the warm-up, {memory['last_bytes'] / 1e6:.1f} MB at the "
        f"end ({memory['share']:+.2%}, {memory['slope_bytes_per_hour'] / 1e6:+.1f} MB an hour)",
        f"share of guesses right for the same questions: {', '.join(rates)}; of {guesses['compared']} rounds that can "
        f"be compared {guesses['contradictions']} contradict",
        f"stored KV found behind kill -9: {report['kv_disk_bytes_after_kill'] / 1e6:.1f} MB",
        *(f"{'kept  ' if kept else 'BROKEN'} {name}" for name, kept in report["promises"].items()),
        *report["failures"],
    ]
    return "\n".join(lines)


def _told(probe: Probe) -> dict[str, Any]:
    return {**probe._asdict(), "runs": len(probe.runs)}


def _acceptance(probes: Sequence[dict[str, Any]]) -> float:
    return float(sum(one["accepted"] for one in probes) / max(1, sum(one["drafted"] for one in probes)))
