"""MemSpec: predict the best draft, keep a working set, never wait for a load.

Source: "MemSpec: memory-aware runtime for adaptive draft scheduling on edge devices" (DOI 10.1145/3814943.3816174),
rebuilt from its published description. A light engine predicts every draft's acceptance from the text; every few
rounds the best predicted draft is fetched in the background if it is not resident; until it arrives the best
*resident* draft guesses. The draft length is fixed.
"""

from __future__ import annotations

import numpy as np

from runtime.control.action import ActionCodec
from runtime.control.observation import Floats, Observation
from runtime.control.rules import background, speculate
from runtime.core import Decision, Outcome, Phase

PREFETCH_MARGIN = 0.02
"""A draft must be predicted this much better than the best resident one to be worth a load."""


class MemSpecController:
    """MemSpec's draft choice and residency, with a fixed draft length.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level; 0 as published.
        reuse_kv: Whether stored prefixes are kept and reused greedily.
        name: Name in reports.
    """

    def __init__(self, n_drafts: int, gamma: int, stop: int = 0, reuse_kv: bool = True, name: str = "memspec") -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._gamma, self._stop, self._reuse_kv = gamma, stop, reuse_kv

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        predicted = self._acceptance(observation)
        resident = observation.per_draft("resident") > 0
        best = int(np.argmax(predicted))
        best_resident = int(np.argmax(np.where(resident, predicted, -1.0))) if resident.any() else None
        behind = best_resident is None or predicted[best] > predicted[best_resident] + PREFETCH_MARGIN
        wanted = best if behind and not resident[best] else None
        rest = background(observation, self._codec, wanted, self._reuse_kv)
        if observation.phase is not Phase.DECODE:
            return rest
        return speculate(observation, best_resident, self._gamma, self._stop, rest)

    def learn(self, outcome: Outcome) -> None: ...

    def _acceptance(self, observation: Observation) -> Floats:
        """What every draft is chosen by, shape (drafts,)."""
        return observation.per_draft("predicted")
