"""Schedules of a run: how a value falls while the decisions are spent. Plain objects, so that they can be saved."""

from __future__ import annotations

import math
from dataclasses import dataclass

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class Schedule:
    """A value by the share of the run that is left; what stable-baselines3 calls a schedule.

    Attributes:
        kind: ``constant``, ``linear`` (to zero) or ``cosine`` (half a cosine, to zero).
        start: Value at the start.
    """

    kind: str
    start: float

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise ValueError(f"agent.schedule: expected {', '.join(SCHEDULES)}, got {self.kind!r}")

    def __call__(self, left: float) -> float:
        """The value with this share of the run left, 1 at the start and 0 at the end."""
        if self.kind == "constant":
            return self.start
        return self.start * (left if self.kind == "linear" else 0.5 * (1.0 - math.cos(math.pi * left)))
