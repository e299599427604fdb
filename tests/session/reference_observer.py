"""The observation vector by features, in numpy: what ``runtime.observer``, which is written to be fast, must give."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, P, bounds
from runtime.control.topic import TopicPredictor
from runtime.core import GAMMAS, Phase
from runtime.decoding.base import Decoder
from runtime.memory.manager import MemoryManager
from runtime.profile import CostModel
from runtime.state import Evidence, State

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
Rows = np.ndarray[tuple[int, int], np.dtype[np.float32]]


class ReferenceObserver:
    """Looks at a session.

    Args:
        memory: Its memory.
        decoder: Its decoder.
        costs: The device's costs; all features of cost are in plain decoding steps.
        topic: Topic predictor, for prompts; while decoding the decoder is asked.
    """

    def __init__(self, memory: MemoryManager, decoder: Decoder, costs: CostModel, topic: TopicPredictor | None) -> None:
        self.memory, self.decoder, self.costs, self.topic = memory, decoder, costs, topic
        self.drafts = memory.drafts
        self._low, self._high = bounds(len(self.drafts))
        self._load_ratios: list[float] = costs.load_ratios.tolist()
        self._plain_s = costs.plain_s(costs.profile.reference_context)
        self._weightless = [i for i, draft in enumerate(self.drafts) if not draft.loadable]
        self._budget = max(1, memory.config.budget_bytes)
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

    def static_vector(self) -> Vector:
        """What does not change: costs and sizes; all else 0. Shape as ``vector``'s."""
        vector = np.zeros_like(self._low)
        for gamma, ratio in zip(GAMMAS, self.costs.verify_ratios(GAMMAS), strict=True):
            vector[GLOBAL_INDEX[f"verify_ratio_{gamma}"]] = ratio
        per_draft = vector[G:].reshape(-1, P)
        per_draft[:, DRAFT_INDEX["step_ratio"]] = self.costs.step_ratios
        per_draft[:, DRAFT_INDEX["weightless"]] = [not draft.loadable for draft in self.drafts]
        per_draft[:, DRAFT_INDEX["size_share"]] = [draft.bytes / self._budget for draft in self.drafts]
        return vector

    def _fill_drafts(self, rows: Rows, state: State, evidence: Evidence, committed: int) -> None:
        rows[:, 0:3] = [self._progress(i) for i in range(len(self.drafts))]
        rows[:, DRAFT_INDEX["acceptance"]] = evidence.acceptance
        rows[:, DRAFT_INDEX["staleness"]] = committed - evidence.seen_at
        rows[:, 5:7] = [self._catch_up(i, state) for i in range(len(self.drafts))]
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

    def _catch_up(self, draft: int, state: State) -> tuple[float, float]:
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
