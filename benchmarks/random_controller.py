"""A controller that decides at random: a test instrument, which finds what no sensible controller would try."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.core import GAMMAS, Decision, DraftSpec, Outcome, Phase

SPECULATE, PREFETCH, KV = 0, 2, 3
"""Dimensions of the action; see ``runtime.control.action``."""


class RandomController:
    """Any legal value of every dimension. Implements ``Controller``.

    Args:
        drafts: The zoo's drafts.
        seed: Of the choices.
        keep: Chance to reuse or retain KV where that is legal: high, so that both happen a lot.
        plain: Chance of a plain round although a draft could guess.
        prefetch: Chance to load something where that is legal.
        wait: Chance that a round stalls for a draft that is not resident, whatever the mask says of it.
    """

    name = "random"

    def __init__(
        self,
        drafts: Sequence[DraftSpec],
        seed: int,
        keep: float = 0.85,
        plain: float = 0.1,
        prefetch: float = 0.08,
        wait: float = 0.01,
    ) -> None:
        self._codec = ActionCodec(len(drafts))
        self._loadable = [index for index, draft in enumerate(drafts) if draft.loadable]
        self._chance = {SPECULATE: 1.0 - plain, PREFETCH: prefetch, KV: keep}
        self._wait = wait
        self._rng = np.random.default_rng(seed)

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        decision = self._codec.decode([self._pick(observation, index) for index in range(len(self._codec.nvec))])
        if self._stalls(observation):
            return self._on_demand(observation, decision)
        return decision

    def learn(self, outcome: Outcome) -> None: ...

    def _pick(self, observation: Observation, dimension: int) -> int:
        start, end = self._codec.offsets[dimension : dimension + 2]
        legal = np.flatnonzero(observation.mask[start:end])
        if dimension in self._chance and len(legal) > 1:  # 0 means nothing there
            acts = self._rng.random() < self._chance[dimension]
            legal = legal[legal > 0] if acts else legal[:1]
        return int(self._rng.choice(legal))

    def _stalls(self, observation: Observation) -> bool:
        possible = observation.phase is Phase.DECODE and observation.value("room_tokens") > 1
        return possible and self._rng.random() < self._wait

    def _on_demand(self, observation: Observation, decision: Decision) -> Decision:
        resident = observation.per_draft("resident")
        absent = [index for index in self._loadable if not resident[index]]
        if not absent:
            return decision
        draft, gamma = int(self._rng.choice(absent)), int(self._rng.choice(GAMMAS))
        return decision._replace(draft=draft, gamma=gamma, prefetch=None, wait=True)
