"""Whether the world is still the one a policy was trained for: what rounds cost, and how often guesses are right."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY_ROUNDS = 40.0
"""Rounds over which means are taken."""

COST_ROUNDS = 20.0
"""Rounds after which their mean cost is trusted: it varies little."""

COST_LIMIT = 1.5
"""Measured time / expected time of speculative rounds, beyond which costs have drifted."""

RIGHT_LIMIT = 0.25
"""Share of first guesses that was expected to be right less the share that was, beyond which drafts have drifted."""


@dataclass(slots=True)
class Mean:
    """A decayed mean and how many rounds stand behind it, at most ``MEMORY_ROUNDS``."""

    value: float = 0.0
    rounds: float = 0.0

    def note(self, value: float) -> None:
        """Take in one more."""
        self.rounds = min(self.rounds + 1.0, MEMORY_ROUNDS)
        self.value += (value - self.value) / self.rounds


class Drift:
    """Compares speculative rounds with what was expected of them."""

    def __init__(self) -> None:
        self.cost = Mean()
        self.right = Mean()
        self.expected_right = Mean()

    def note(self, seconds: float, expected_s: float, right: bool, confidence: float) -> None:
        """Take in a round.

        Args:
            seconds: Its time.
            expected_s: By the profile, at the device's pace.
            right: Whether the first guess was accepted.
            confidence: Calibrated probability of that; NaN if nothing was guessed.
        """
        self.cost.note(seconds / expected_s)
        if confidence == confidence:
            self.right.note(float(right))
            self.expected_right.note(confidence)

    @property
    def reason(self) -> str | None:
        """What has drifted, for people; None if nothing has, or too little was seen."""
        cost, right, expected = self.cost, self.right, self.expected_right
        if cost.rounds >= COST_ROUNDS and cost.value > COST_LIMIT:
            return f"rounds take {cost.value:.2f} times the time of the profile, beside plain decoding"
        if right.rounds >= MEMORY_ROUNDS and expected.value - right.value > RIGHT_LIMIT:
            return f"{right.value:.0%} of first guesses are right, {expected.value:.0%} were expected"
        return None
