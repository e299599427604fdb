"""Epsilon-greedy: mostly the arm that paid best, now and then any arm."""

from __future__ import annotations

from agents.bandits.base import DraftBandit, Rhythm


class EpsilonGreedyController(DraftBandit):
    """Mostly the arm that paid best, now and then any arm.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level.
        seed: Of the exploration; every stream draws from a sequence of its own.
        epsilon: Chance of any arm instead of the best.
        memory: Weight kept by earlier pulls; None = as tuned.
        interval: Rounds of a pull; None = as tuned.
        resident_only: Whether only resident drafts are arms.
        name: Name in reports.
    """

    loading = Rhythm(memory=0.8, interval=4)
    resident = Rhythm(memory=0.97, interval=1)

    def __init__(
        self,
        n_drafts: int,
        gamma: int,
        stop: int = 0,
        seed: int = 0,
        epsilon: float = 0.07,
        memory: float | None = None,
        interval: int | None = None,
        resident_only: bool = False,
        name: str = "bandit_epsilon",
    ) -> None:
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon: expected a probability, got {epsilon}")
        self._epsilon = epsilon
        super().__init__(n_drafts, gamma, stop, memory, interval, resident_only, name, seed)

    def _choose(self, arms: list[int]) -> int:
        return self._rng.choice(arms) if self._rng.random() < self._epsilon else max(arms, key=self._value)
