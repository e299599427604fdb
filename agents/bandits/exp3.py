"""EXP3: arms are drawn by weight, and a drawn arm's weight grows with its pay over the chance of drawing it."""

from __future__ import annotations

import math
from typing import Unpack

from agents.bandits.base import DraftBandit, Rhythm, Shared
from runtime.control.observation import Observation


class Exp3Controller(DraftBandit):
    """EXP3.S, which assumes nothing of how pay comes about and follows shifts.

    Of K arms with weights w one is drawn with probability ``p = (1 - explore) * w / sum(w) + explore / K``. A pull
    multiplies the arm's weight by ``exp(rate * x / p)``; then every arm gets ``e * share / K`` of all weight. The
    bounds of the analysis want ``rate = explore / K``, which learns too slowly for the few hundred pulls of a stream.
    As published x is the pay; here it is the pay less the mean of all remembered pay. In expectation that takes the
    same from every arm, so it changes no choice, but the weight of a rare arm no longer leaps whenever it is drawn.

    Source: Auer, Cesa-Bianchi, Freund and Schapire 2002, EXP3 and EXP3.S; for speculative decoding
    BanditSpec, arXiv 2505.15141.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level.
        rate: Learning rate.
        explore: Chance of any arm instead of one drawn by weight.
        share: Part of all weight, times e, that is spread evenly after a pull; near 0 = EXP3.
        shared: See ``DraftBandit``.
    """

    kind = "bandit_exp3"
    loading = Rhythm(memory=0.99, interval=4)
    resident = Rhythm(memory=0.99, interval=1)

    def __init__(
        self,
        n_drafts: int,
        gamma: int,
        stop: int = 0,
        rate: float = 0.6,
        explore: float = 0.05,
        share: float = 0.0005,
        **shared: Unpack[Shared],
    ) -> None:
        if rate <= 0.0:
            raise ValueError(f"rate: expected above 0, got {rate}")
        if not 0.0 < explore <= 1.0:
            raise ValueError(f"explore: expected a probability above 0, got {explore}")
        if share <= 0.0:
            raise ValueError(f"share: expected above 0, got {share}")
        self._rate, self._explore, self._share = rate, explore, share
        super().__init__(n_drafts, gamma, stop, **shared)

    def begin_stream(self) -> None:
        super().begin_stream()
        self._weights = [1.0 / self._n] * self._n
        self._chance = 1.0  # that the arm in hand was drawn

    def _next_arm(self, arms: list[int], observation: Observation) -> int | None:
        self._chance = 1.0  # an arm's first pull is certain
        return super()._next_arm(arms, observation)

    def _choose(self, arms: list[int]) -> int:
        chances = self._chances(arms)
        index = self._rng.choices(range(len(arms)), chances)[0]
        self._chance = chances[index]
        return arms[index]

    def _chances(self, arms: list[int]) -> list[float]:
        total = sum(self._weights[arm] for arm in arms)
        return [(1.0 - self._explore) * self._weights[arm] / total + self._explore / len(arms) for arm in arms]

    def _note(self, arm: int, pay: float) -> None:
        pulls = sum(self._pulls)
        usual = sum(self._paid) / pulls if pulls else pay
        super()._note(arm, pay)
        growth = self._rate * (pay - usual) / self._best_pay / self._chance
        own, others = math.exp(min(growth, 0.0)), math.exp(min(-growth, 0.0))  # up to a factor, and without overflow
        weights = [weight * (own if draft == arm else others) for draft, weight in enumerate(self._weights)]
        total = sum(weights)
        self._weights = [weight / total + math.e * self._share / self._n for weight in weights]
