"""Reading a cost curve at places that lie close together, as a text that grows token by token does."""

from __future__ import annotations

from math import inf

from runtime.profile import Curve


class CurveReader:
    """``Curve.at``, bit for bit; it stays on the piece of the curve that it read last.

    Args:
        curve: What to read.
    """

    __slots__ = ("_begin", "_curve", "_end", "_slope", "_x", "_y")

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._begin, self._end = inf, -inf  # no piece yet
        self._x = self._y = self._slope = 0.0

    def at(self, x: float) -> float:
        """Seconds at ``x``."""
        if not self._begin < x <= self._end:
            self._go_to(x)
        seconds = self._y + self._slope * (x - self._x)
        return seconds if seconds > 0.0 else 0.0

    def _go_to(self, x: float) -> None:
        """Find the piece of ``x``. The first and the last one go on for ever."""
        xs, ys = self._curve.x, self._curve.seconds
        last = len(xs) - 1
        index = next((i for i in range(1, last) if x <= xs[i]), max(last, 1))
        self._begin = -inf if index == 1 else xs[index - 1]
        self._end = inf if index >= last else xs[index]
        self._x, self._y = xs[index - 1], ys[index - 1]
        self._slope = (ys[index] - ys[index - 1]) / (xs[index] - xs[index - 1]) if last else 0.0
