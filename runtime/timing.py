"""Timing pieces of work: medians over rounds, so that a slow moment of the machine hits all pieces alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from runtime.profile import Curve

Key = TypeVar("Key", int, str)
WARM_UP = 2


class Timed(NamedTuple):
    """Median and half the inter-quartile range, seconds."""

    seconds: float
    spread: float


def median_of(samples: list[float]) -> Timed:
    """Summary of at least one sample, seconds."""
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return Timed(float(middle), float(high - low) / 2.0)


def timed(
    pieces: Mapping[Key, Callable[[], object]],
    rounds: int,
    synchronize: Callable[[], None],
    prepare: Callable[[Key], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> dict[Key, Timed]:
    """Time pieces of work in turn.

    Args:
        pieces: What to time, by name or size.
        rounds: How often each is timed, after ``WARM_UP`` rounds that do not count (one if ``rounds`` is small).
        synchronize: Returns when all device work issued before is finished.
        prepare: Done before each piece, outside its time.
        clock: Seconds; None = the wall's. The process's own, say, on a machine that others use.
    """
    now_s = clock or time.perf_counter
    samples: dict[Key, list[float]] = {key: [] for key in pieces}
    for number in range(-min(WARM_UP, max(1, rounds // 3)), rounds):
        for key, piece in pieces.items():
            if prepare is not None:
                prepare(key)
            synchronize()
            begun_s = now_s()
            piece()
            synchronize()
            if number >= 0:
                samples[key].append(now_s() - begun_s)
    return {key: median_of(values) for key, values in samples.items()}


def curve(points: Mapping[int, Timed]) -> Curve:
    """A cost by size, from its measurements."""
    sizes = sorted(points)
    return Curve(
        tuple(map(float, sizes)),
        tuple(points[size].seconds for size in sizes),
        tuple(points[size].spread for size in sizes),
    )
