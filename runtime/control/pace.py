"""How fast the device is now, against its profile: plain decoding's pace, and what rounds cost beside it."""

from __future__ import annotations

WARM_ROUNDS = 3
"""Plain rounds before the pace is trusted."""

MEMORY = 0.5
"""Weight of what is known against one more round."""

PROBE_EVERY = 100
"""Rounds without a plain one, after which one is asked for: it costs one round's gain in a hundred."""

PROBE_SOON = 2
"""The same, right after a round that took much longer than expected: is it the round, or the device?"""

UNUSUAL = 1.5
"""A round that takes so many times its expected time is unusual."""


class Pace:
    """Measured time / profile's time of plain rounds, a decayed mean; and whether it should be measured again."""

    def __init__(self) -> None:
        self._measured_s = self._expected_s = 0.0
        self._plain_rounds = 0
        self._since = 0
        self._probe_in = PROBE_EVERY

    @property
    def factor(self) -> float:
        """What plain decoding takes now, in units of the profile; 1 before anything was measured."""
        return self._measured_s / self._expected_s if self._expected_s else 1.0

    @property
    def wants_plain(self) -> bool:
        """Whether the next round should be plain, to measure."""
        return self._plain_rounds < WARM_ROUNDS or self._since >= self._probe_in

    def plain(self, seconds: float, expected_s: float) -> None:
        """Take in a plain round."""
        self._measured_s = MEMORY * self._measured_s + seconds
        self._expected_s = MEMORY * self._expected_s + expected_s
        self._plain_rounds += 1
        self._since, self._probe_in = 0, PROBE_EVERY

    def speculative(self, seconds: float, expected_s: float) -> None:
        """Take in another round; ``expected_s`` at this pace."""
        self._since += 1
        if seconds > UNUSUAL * expected_s:
            self._probe_in = min(self._probe_in, self._since + PROBE_SOON)
