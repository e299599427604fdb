"""The observation vector by features, in numpy: what ``runtime.observer``, which is written to be fast, must give."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.control.observation import DRAFT_INDEX, G, P, bounds
from runtime.control.topic import TopicPredictor
from runtime.core import Phase
from runtime.decoding.base import Decoder
from runtime.memory.manager import MemoryManager
from runtime.observer import Observer
from runtime.profile import CostModel
from runtime.state import Evidence, State

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
Rows = np.ndarray[tuple[int, int], np.dtype[np.float32]]


class ReferenceObserver(Observer):
    """Looks at a session; what does not change is the observer's own."""

    def __init__(self, memory: MemoryManager, decoder: Decoder, costs: CostModel, topic: TopicPredictor | None) -> None:
        super().__init__(memory, decoder, costs, topic)
        self._low, self._high = bounds(len(self.drafts))
        self._static = self.static_vector()

    def vector(self, state: State, evidence: Evidence, committed: int) -> Vector:
        """Float32, shape (G + drafts * P,), clipped to the features' ranges.

        Args:
            state: Where the session is.
            evidence: What was seen of the drafts; a weightless draft's confidence is looked up and noted there.
            committed: Tokens committed by the session in all.
        """
        vector = self._static.copy()
        vector[int(state.phase)] = 1.0
        memory, budget, match = self.memory, self._budget, state.match
        admitting = state.phase is Phase.ADMIT
        usable = match.tokens if admitting else 0
        again_s = self.costs.prefill_s(usable if admitting else state.context, 0) if state.request else 0.0
        vector[3:20] = (
            state.prompt_tokens,
            usable,
            usable / max(state.prompt_tokens, 1),
            match.disk_tokens if admitting else 0,
            state.context,
            state.generated,
            state.room,
            state.last_drafted,
            state.last_accepted,
            (budget - memory.aside_bytes - memory.used_bytes) / budget,
            memory.kv.bytes / budget,
            state.context * memory.config.kv_bytes_per_token / budget,
            state.since_decision,
            state.may_prefetch,
            sum(memory.loading(i) for i in range(len(self.drafts))),
            evidence.hit_share,
            again_s / self._plain_s if usable or not admitting else 0.0,
        )
        self._fill_drafts(vector[G:].reshape(-1, P), state, evidence, committed)
        return vector.clip(self._low, self._high, out=vector)

    def _fill_drafts(self, rows: Rows, state: State, evidence: Evidence, committed: int) -> None:
        rows[:, 0:3] = [self._progress(i) for i in range(len(self.drafts))]
        rows[:, DRAFT_INDEX["acceptance"]] = evidence.acceptance
        rows[:, DRAFT_INDEX["staleness"]] = committed - evidence.seen_at
        rows[:, 5:7] = [self._behind(i, state) for i in range(len(self.drafts))]
        rows[:, DRAFT_INDEX["predicted"]] = self._predicted(state)
        if state.phase is Phase.DECODE and self.topic is not None:
            rows[:, DRAFT_INDEX["next_shift"]] = self.topic.next_shift(self.decoder.last_token())
        if state.phase is Phase.DECODE:
            for i in self._weightless:
                evidence.confidence[i] = self.decoder.lookup_confidence(i)
        rows[:, DRAFT_INDEX["confidence"]] = evidence.confidence

    def _progress(self, draft: int) -> tuple[float, float, float]:
        """(resident, loading_fraction, load_left) of a draft."""
        if self.memory.resident(draft):
            return 1.0, 0.0, 0.0
        fraction = self.memory.loader.fraction(draft) if self.memory.loading(draft) else 0.0
        return 0.0, fraction, self._load_ratios[draft] * (1.0 - fraction)

    def _behind(self, draft: int, state: State) -> tuple[float, float]:
        """(catch_up_tokens, catch_up_cost) of a draft."""
        if state.request is None or not self.drafts[draft].loadable:
            return 0.0, 0.0
        behind = self.decoder.catch_up_tokens(draft) if state.phase is Phase.DECODE else state.prompt_tokens
        extra_s = self.costs.draft_s(draft, behind + 1) - self.costs.draft_s(draft, 1)
        return behind, extra_s / self._plain_s

    def _predicted(self, state: State) -> npt.NDArray[np.float32]:
        if state.phase is Phase.ADMIT and self.topic is not None and state.request is not None:
            return self.topic.predict(state.request.prompt_ids)
        predicted: npt.NDArray[np.float32] = self.decoder.predicted()
        return predicted
