"""A timeline as spans of time: when a draft was in memory or on its way, and how stored KV grew and shrank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agents.timeline import Timeline


class Span(NamedTuple):
    """A piece of the stream's time."""

    start_s: float
    end_s: float


class Level(NamedTuple):
    """Stored KV from a moment on."""

    start_s: float
    kv_bytes: int


def resident_spans(timeline: Timeline, draft: int) -> list[Span]:
    """When the draft was usable."""
    return _joined(timeline, [draft in step.resident for step in timeline.steps])


def loading_spans(timeline: Timeline, draft: int) -> list[Span]:
    """When the draft was on its way in the background: from the step that asked for it.

    A load that ends within a step is drawn to the step's end. A load that decoding waits for is a stall instead.
    """
    steps = timeline.steps
    known = [draft in step.resident or draft in step.loading for step in steps]
    asked = [
        not before and after and not (step.stall_s > 0.0 and step.draft == draft)
        for step, before, after in zip(steps, known, [*known[1:], False], strict=True)
    ]
    return _joined(timeline, [draft in step.loading or now for step, now in zip(steps, asked, strict=True)])


def kv_levels(timeline: Timeline) -> list[Level]:
    """Stored KV, one entry a change, and one at the end."""
    levels: list[Level] = []
    for step in timeline.steps:
        if not levels or step.kv_bytes != levels[-1].kv_bytes:
            levels.append(Level(step.start_s, step.kv_bytes))
    return [*levels, Level(timeline.seconds, levels[-1].kv_bytes)] if levels else []


def request_starts_s(timeline: Timeline) -> list[float]:
    """When each request began."""
    starts: list[float] = []
    for step in timeline.steps:
        if step.request == len(starts):
            starts.append(step.start_s)
    return starts


def _joined(timeline: Timeline, holds: Sequence[bool]) -> list[Span]:
    """Joined spans of the steps for which it holds; a step lasts until the next one begins."""
    steps = timeline.steps
    ends = [*(after.start_s for after in steps[1:]), timeline.seconds]
    spans: list[Span] = []
    for step, end_s, holding in zip(steps, ends, holds, strict=True):
        if not holding:
            continue
        if spans and spans[-1].end_s == step.start_s:
            spans[-1] = Span(spans[-1].start_s, end_s)
        else:
            spans.append(Span(step.start_s, end_s))
    return spans
