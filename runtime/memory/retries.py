"""Drafts whose load failed, and when another attempt is worth it.

A failed draft waits, twice as long after every failure. When its time has come it may be loaded again, if there is hope
(its file is there again, say); without hope it goes on waiting, which costs nothing. After some failures in a row it is
given up for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST_S = 5.0
"""How long a draft waits after its first failure."""
MOST_FAILURES = 6
"""So many failures in a row, and a draft is not tried again."""


@dataclass
class Failing:
    """A draft that failed.

    Attributes:
        failures: So many times in a row.
        again_s: When it may be looked at again, on the clock; None = its next attempt is on, or it was given up.
    """

    failures: int = 0
    again_s: float | None = None


class Retries:
    """Remembers failures.

    Args:
        hopeful: Whether an attempt may go better than the last one; must return at once. Without it nothing is tried
            again.
        clock: Seconds.
    """

    def __init__(
        self, hopeful: Callable[[int], bool] = lambda draft: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hopeful, self._clock = hopeful, clock
        self._failing: dict[int, Failing] = {}

    def fail(self, draft: int) -> int:
        """A load failed. Returns the failures in a row; from ``MOST_FAILURES`` on it is given up."""
        failing = self._failing.setdefault(draft, Failing())
        failing.failures += 1
        given_up = failing.failures >= MOST_FAILURES
        failing.again_s = None if given_up else self._clock() + FIRST_S * 2.0 ** (failing.failures - 1)
        return failing.failures

    def succeed(self, draft: int) -> bool:
        """A load brought the draft. Whether it had failed before."""
        return self._failing.pop(draft, None) is not None

    def due(self) -> list[int]:
        """Drafts that may be loaded again from now on; each is named once."""
        if not self._failing:  # this is called every round
            return []
        now_s, due = self._clock(), []
        for draft, failing in self._failing.items():
            if failing.again_s is None or failing.again_s > now_s:
                continue
            if self._hopeful(draft):
                failing.again_s = None
                due.append(draft)
            else:
                failing.again_s = now_s + FIRST_S
        return due
