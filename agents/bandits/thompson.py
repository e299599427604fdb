"""Thompson sampling: the arm that is best in one draw from what is believed of all."""

from __future__ import annotations

import math
from typing import Unpack

from agents.bandits.base import DraftBandit, Rhythm, Shared


class ThompsonController(DraftBandit):
    """The arm whose pay is highest in one draw from every arm's posterior.

    Pay is taken as normal with a known spread and a flat prior: an arm's posterior is normal around the mean of its
    remembered pulls, with standard deviation ``spread / sqrt(their weight)``. Forgetting widens it again, so an arm
    that was not pulled for long is tried anew. A Beta posterior of acceptance misses what decides here, that a guess
    costs time: it was slower on training streams, with loads and with residents only.

    Source: Thompson 1933; normal rewards as in Agrawal and Goyal 2013; forgetting as in discounted Thompson sampling,
    Raj and Kalyani 2017.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level.
        spread: Standard deviation of the pay of one pull, as a share of the best pay seen.
        shared: See ``DraftBandit``.
    """

    kind = "bandit_thompson"
    loading = Rhythm(memory=0.99, interval=4)
    resident = Rhythm(memory=0.97, interval=1)

    def __init__(
        self, n_drafts: int, gamma: int, stop: int = 0, spread: float = 0.05, **shared: Unpack[Shared]
    ) -> None:
        if spread < 0.0:
            raise ValueError(f"spread: expected at least 0, got {spread}")
        self._spread = spread
        super().__init__(n_drafts, gamma, stop, **shared)

    def _choose(self, arms: list[int]) -> int:
        drawn = [self._rng.gauss(self._value(arm), self._spread / math.sqrt(self._pulls[arm])) for arm in arms]
        return arms[drawn.index(max(drawn))]
