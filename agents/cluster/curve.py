"""A run's validation curve, read from the event file that tensorboard reads, while the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    SCALARS,
    EventAccumulator,
)

TENSORBOARD = "tensorboard"


class Point(NamedTuple):
    """One validation: after how many decisions, and the speed-up over plain decoding."""

    decisions: int
    speedup: float


class Curve:
    """The curve of one run.

    Args:
        run: The run folder.
        metric: Tag of the scalar.
    """

    def __init__(self, run: Path, metric: str) -> None:
        self._folder, self._metric = run / TENSORBOARD, metric
        self._told = -1

    def points(self) -> list[Point]:
        """Every validation so far, by decisions; empty before the first one."""
        if not self._folder.is_dir():
            return []
        events = EventAccumulator(str(self._folder), size_guidance={SCALARS: 0})
        events.Reload()
        if self._metric not in events.Tags()[SCALARS]:
            return []
        values = {event.step: event.value for event in events.Scalars(self._metric)}
        return [Point(int(step), float(values[step])) for step in sorted(values)]

    def news(self) -> list[Point]:
        """The validations that were not told before."""
        found = [point for point in self.points() if point.decisions > self._told]
        self._told = max([self._told, *(point.decisions for point in found)])
        return found
