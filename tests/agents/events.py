"""What tensorboard shows of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

WALL = ("time/",)
"""Tags of wall time: they depend on the machine's mood."""


def read_events(run: Path) -> Any:
    """Everything in the run's ``tensorboard/``."""
    keep_all = {"scalars": 0, "images": 0, "tensors": 0}
    events = EventAccumulator(str(run / "tensorboard"), keep_all)
    return events.Reload()


def steps_by_tag(run: Path) -> dict[str, list[tuple[int, float]]]:
    """(decisions, value) of every scalar but those of wall time."""
    events = read_events(run)
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if not tag.startswith(WALL)
    }
