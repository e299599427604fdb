"""A clock that moves only when work is done."""

from __future__ import annotations


class VirtualClock:
    """Seconds since its making."""

    __slots__ = ("_now_s",)

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
