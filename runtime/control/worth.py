"""What stored KV and drafts are worth: the time of bringing them back, by the chance that this is needed."""

from __future__ import annotations

import numpy as np

from runtime.control.observation import Observation
from runtime.core import Victim
from runtime.profile import CostModel

HIT_START, HIT_KEPT, HIT_LEAST = 0.5, 0.8, 0.05
"""Expected share of a prompt that is stored: at first, its weight against what the next request shows, at least."""

DRAFT_CHANCE = 0.5
"""Chance that a draft which is given up is wanted again."""


class Worth:
    """Compares stored KV with drafts, by how much of the prompts of this stream was found stored.

    Args:
        costs: Measured costs of the device.
    """

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self.begin_stream()

    def begin_stream(self) -> None:
        """Forget what was found."""
        self.hit_share = HIT_START

    def note(self, observation: Observation) -> None:
        """Take in a request that arrives."""
        found = observation.value("usable_share")
        self.hit_share = max(HIT_LEAST, HIT_KEPT * self.hit_share + (1.0 - HIT_KEPT) * found)

    def retain(self, observation: Observation) -> bool:
        """Whether this request's KV will save more than copying it, and the drafts that must go for it, cost.

        Free memory costs nothing, and of older KV the part worth least would go.
        """
        tokens = int(observation.value("context_tokens"))
        saved_s = self.hit_share * (self._costs.prefill_s(tokens, 0) - self._costs.kv_restore_s(tokens))
        lacking = observation.value("retain_share") - observation.value("free_share") - observation.value("kv_share")
        return saved_s > self._costs.kv_store_s(tokens) + self._displaced_s(observation, lacking)

    def victim(self, observation: Observation) -> Victim:
        """What should give way to a load: the class that costs less to bring back per byte."""
        tokens = max(1, int(observation.value("context_tokens")))
        kv_bytes = tokens * self._costs.profile.kv_bytes_per_token
        kv_s = self.hit_share * self._costs.prefill_s(tokens, 0) / kv_bytes
        drafts = [cost for cost in self._costs.costs if cost.bytes]
        draft_s = DRAFT_CHANCE * min((cost.load_s / cost.bytes for cost in drafts), default=0.0)
        return Victim.DRAFTS if draft_s < kv_s else Victim.KV

    def _displaced_s(self, observation: Observation, lacking: float) -> float:
        """Expected time of loading again the drafts that give way to ``lacking`` of the budget, cheapest first."""
        size, resident = observation.per_draft("size_share"), observation.per_draft("resident") > 0
        movable = resident & (observation.per_draft("weightless") == 0)
        seconds = 0.0
        for draft in sorted(np.flatnonzero(movable), key=lambda d: self._costs.load_s(int(d))):
            if lacking <= 0.0:
                break
            lacking -= float(size[draft])
            seconds += DRAFT_CHANCE * self._costs.load_s(int(draft))
        return seconds
