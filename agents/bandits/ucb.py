"""UCB1 with forgetting and a smaller bonus."""

from __future__ import annotations

import math
from typing import Unpack

from agents.bandits.base import DraftBandit, Rhythm, Shared


class UcbController(DraftBandit):
    """The arm whose pay could be best, given how often it was tried: UCB1 with forgetting and a smaller bonus.

    The next arm has the highest ``mean + exploration * sqrt(2 * ln(all pulls) / its pulls)``. As published (both 1) it
    explores for longer than a stream lasts.

    Source: Auer, Cesa-Bianchi and Fischer 2002, UCB1; forgetting as in discounted UCB, Garivier and Moulines 2011.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level.
        exploration: Factor on the bonus; 1 = as published.
        shared: See ``DraftBandit``.
    """

    kind = "bandit_ucb"
    loading = Rhythm(memory=0.99, interval=4)
    resident = Rhythm(memory=0.97, interval=1)

    def __init__(
        self, n_drafts: int, gamma: int, stop: int = 0, exploration: float = 0.03, **shared: Unpack[Shared]
    ) -> None:
        if exploration < 0.0:
            raise ValueError(f"exploration: expected at least 0, got {exploration}")
        self._exploration = exploration
        super().__init__(n_drafts, gamma, stop, **shared)

    def _choose(self, arms: list[int]) -> int:
        log_all = math.log(max(1.0, sum(self._pulls[arm] for arm in arms)))

        def most_it_could_be(arm: int) -> float:
            return self._value(arm) + self._exploration * math.sqrt(2.0 * log_all / self._pulls[arm])

        return max(arms, key=most_it_could_be)
