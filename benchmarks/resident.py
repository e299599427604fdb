"""Memory of another process over a long time, and whether it grows."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.watching import anonymous_bytes
from runtime.errors import UserError

SAMPLE_S = 5.0
FEWEST_SAMPLES = 100
"""Of a short run samples are closer together."""
WARM_UP_SHARE = 0.25
"""Of the time: until then caches and budgets fill."""


class Sample(NamedTuple):
    """Anonymous resident memory, so long after the first sample."""

    seconds: float
    bytes: int


class MemoryLog:
    """Reads a process' memory until the end of the block.

    Args:
        pid: The process.
        expected_s: How long that will be, about.
    """

    def __init__(self, pid: int, expected_s: float) -> None:
        self.samples: list[Sample] = []
        self._pid, self._pause_s = pid, min(SAMPLE_S, max(0.05, expected_s / FEWEST_SAMPLES))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-log")
        self._began_s = 0.0

    def __enter__(self) -> MemoryLog:
        self._began_s = time.monotonic()
        self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._read()

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            self._read()

    def _read(self) -> None:
        try:
            held = anonymous_bytes(self._pid)
        except UserError:  # it has ended: its clients will say so
            return
        self.samples.append(Sample(time.monotonic() - self._began_s, held))


class Growth(NamedTuple):
    """What became of a process' memory after the warm-up.

    Attributes:
        first_bytes: Median of the first quarter.
        last_bytes: Median of the last quarter.
        share: What the last is above the first, as a share of it.
        slope_bytes_per_hour: Median of the slopes between all pairs of samples (Theil-Sen).
    """

    first_bytes: float
    last_bytes: float
    share: float
    slope_bytes_per_hour: float


def growth(samples: Sequence[Sample]) -> Growth:
    """Judge samples.

    Raises:
        UserError: If there are too few.
    """
    if not samples:
        raise UserError("the memory of the server could not be read: this measurement needs Linux")
    warm_s = samples[-1].seconds * WARM_UP_SHARE
    settled = [sample for sample in samples if sample.seconds >= warm_s]
    if len(settled) < 8:
        raise UserError(f"the run gave {len(settled)} samples of memory after its warm-up, expected 8: run it longer")
    quarter = len(settled) // 4
    first, last = (statistics.median(one.bytes for one in part) for part in (settled[:quarter], settled[-quarter:]))
    thin = settled[:: max(1, len(settled) // 200)]
    slopes = [
        (later.bytes - sooner.bytes) / (later.seconds - sooner.seconds) * 3600
        for index, sooner in enumerate(thin)
        for later in thin[index + 1 :]
        if later.seconds > sooner.seconds
    ]
    return Growth(first, last, last / first - 1.0, statistics.median(slopes))
