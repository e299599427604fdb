"""The books behind the floor promise: how many plain decoding steps the last tokens lost against plain decoding."""

from __future__ import annotations

from collections import deque

WINDOW_TOKENS = 1000
"""The promise is about every run of so many tokens."""

ALLOWED_SHARE = 0.02
"""Share of plain decoding's time that such a run may lose."""

KEPT_BACK = 0.25
"""Part of the allowance that is not given out: for steps that cost more than they were expected to."""


class Floor:
    """Sums up what steps lost or gained, and knows the worst run of recent steps.

    A *loss* is time beyond plain decoding's for the same tokens, in plain decoding steps. With ``S(t)`` the sum of all
    losses up to token ``t``, the worst run of at most ``window`` tokens that ends now has lost
    ``S(now) - min(S(s) for now - window <= s <= now)``. If that never passes the allowance, no run of ``window`` tokens
    does, wherever it starts: gains made long ago do not pay for losses now.

    Args:
        window: Tokens of a run.
        share: Of plain decoding's time that a run may lose.
    """

    def __init__(self, window: int = WINDOW_TOKENS, share: float = ALLOWED_SHARE) -> None:
        self._window = window
        self.allowance = share * window * (1.0 - KEPT_BACK)
        self._tokens = 0
        self._sum = 0.0
        self._lowest: deque[tuple[int, float]] = deque([(0, 0.0)])  # increasing sums: the minimum stands in front

    @property
    def lost(self) -> float:
        """What the worst recent run has lost, in plain steps; at least 0."""
        return self._sum - self._lowest[0][1]

    def allows(self, steps: float) -> bool:
        """Whether a loss of so many plain steps, at worst, would keep the promise."""
        return self._sum - self._lowest[0][1] + steps <= self.allowance

    def note(self, tokens: int, loss: float) -> None:
        """Take in a step.

        Args:
            tokens: Committed.
            loss: In plain steps; negative = gained.
        """
        lowest, now = self._lowest, self._tokens + tokens
        self._tokens, self._sum = now, self._sum + loss
        while lowest and lowest[-1][1] >= self._sum:
            lowest.pop()
        lowest.append((now, self._sum))
        while lowest[0][0] < now - self._window:
            lowest.popleft()
