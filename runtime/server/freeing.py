"""Memory that requests have freed goes back to the system now and then, not only when a draft is loaded.

What a forward needs for a moment leaves holes between what stays, and the allocator keeps their pages: measured, 2 to
13 MB at a time. A server that nobody asks gives them back once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from runtime.engine.malloc import release_free_memory

PAUSE_S = 10.0
"""Least time between two releases; one takes 3 to 9 ms."""


class Freeing:
    """Belongs to the thread that owns the models.

    Args:
        release: Gives back what is free; as it comes, of the C library's allocator.
        clock: Seconds.
    """

    def __init__(
        self, release: Callable[[], None] = release_free_memory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._release, self._clock = release, clock
        self._released_s = clock()
        self._owed = False

    def note_work(self) -> None:
        """Something was computed: there will be memory to give back."""
        self._owed = True

    def check(self) -> None:
        """Give memory back, if something was computed since that was last done, a while ago."""
        if self._owed and self._clock() - self._released_s >= PAUSE_S:
            self._release()
            self._released_s, self._owed = self._clock(), False
