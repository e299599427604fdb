"""The wall clock."""

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
