"""The wall clock.

On CUDA too, not a pair of events: a round ends with its tokens in Python, so the device is at rest anyway; what the
host does between forwards counts as well; and the time between two events is a float32 of milliseconds, which an hour
after the first of them goes in steps of a quarter.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class WallClock:
    """Implements ``Clock``.

    Args:
        synchronize: Returns when all device work issued before is finished; None for engines that compute at once.
    """

    def __init__(self, synchronize: Callable[[], None] | None = None) -> None:
        self._synchronize = synchronize

    def now_s(self) -> float:
        """Seconds since some fixed start."""
        if self._synchronize is not None:
            self._synchronize()
        return time.perf_counter()
