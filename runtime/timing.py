"""Timing pieces of work: medians over rounds, so that a slow moment of the machine hits all pieces alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch

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


class Watch(Protocol):
    """A stopwatch for work on a device."""

    def start(self) -> None:
        """Begin when the device is at rest."""
        ...

    def stop(self) -> float:
        """Seconds from there to the end of all work that was issued since."""
        ...


class HostWatch:
    """Implements ``Watch`` with a clock of the host.

    Args:
        synchronize: Returns when all device work issued before is finished.
        now_s: The clock, seconds.
    """

    def __init__(self, synchronize: Callable[[], None], now_s: Callable[[], float]) -> None:
        self._synchronize, self._now_s = synchronize, now_s
        self._begun_s = 0.0

    def start(self) -> None:
        self._synchronize()
        self._begun_s = self._now_s()

    def stop(self) -> float:
        self._synchronize()
        return self._now_s() - self._begun_s


class EventWatch:
    """Implements ``Watch`` with events on a CUDA stream: without the time that the host takes to wake up.

    Args:
        device: A CUDA device; its current stream is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._begun, self._ended = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )

    def start(self) -> None:
        self._stream.synchronize()
        self._begun.record(self._stream)

    def stop(self) -> float:
        self._ended.record(self._stream)
        self._ended.synchronize()
        milliseconds: float = self._begun.elapsed_time(self._ended)
        return milliseconds / 1e3


def timed(
    pieces: Mapping[Key, Callable[[], object]],
    rounds: int,
    synchronize: Callable[[], None],
    prepare: Callable[[Key], object] | None = None,
    clock: Callable[[], float] | None = None,
    device: torch.device | None = None,
) -> dict[Key, Timed]:
    """Time pieces of work in turn.

    Args:
        pieces: What to time, by name or size.
        rounds: How often each is timed, after ``WARM_UP`` rounds that do not count (one if ``rounds`` is small).
        synchronize: Returns when all device work issued before is finished.
        prepare: Done before each piece, outside its time.
        clock: Seconds; None = the wall's. The process's own, say, on a machine that others use.
        device: Where the work is done; on CUDA, without a clock, it is timed by events.
    """
    watch: Watch = HostWatch(synchronize, clock or time.perf_counter)
    if clock is None and device is not None and device.type == "cuda":
        watch = EventWatch(device)
    samples: dict[Key, list[float]] = {key: [] for key in pieces}
    for number in range(-min(WARM_UP, max(1, rounds // 3)), rounds):
        for key, piece in pieces.items():
            if prepare is not None:
                prepare(key)
            watch.start()
            piece()
            seconds = watch.stop()
            if number >= 0:
                samples[key].append(seconds)
    return {key: median_of(values) for key, values in samples.items()}


def curve(points: Mapping[int, Timed]) -> Curve:
    """A cost by size, from its measurements."""
    sizes = sorted(points)
    return Curve(
        tuple(map(float, sizes)),
        tuple(points[size].seconds for size in sizes),
        tuple(points[size].spread for size in sizes),
    )
