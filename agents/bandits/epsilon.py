"""Epsilon-greedy: mostly the arm that paid best, now and then any arm."""

from __future__ import annotations

from typing import Unpack

from agents.bandits.base import DraftBandit, Rhythm, Shared


class EpsilonGreedyController(DraftBandit):
    """Mostly the arm that paid best, now and then any arm.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level.
        epsilon: Chance of any arm instead of the best.
        shared: See ``DraftBandit``.
    """

    kind = "bandit_epsilon"
    loading = Rhythm(memory=0.8, interval=4)
    resident = Rhythm(memory=0.97, interval=1)

    def __init__(
        self, n_drafts: int, gamma: int, stop: int = 0, epsilon: float = 0.07, **shared: Unpack[Shared]
    ) -> None:
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon: expected a probability, got {epsilon}")
        self._epsilon = epsilon
        super().__init__(n_drafts, gamma, stop, **shared)

    def _choose(self, arms: list[int]) -> int:
        return self._rng.choice(arms) if self._rng.random() < self._epsilon else max(arms, key=self._value)
