"""Fills the observation vector, in the order of the table in ``runtime.control.observation``.

Observing is part of every decision, and what it touches has left the caches since the last one. So the vector is
written as plain numbers into one place and copied out of it at the end: few kinds of operations, each begun once.
"""

from __future__ import annotations

import struct

import numpy as np

from runtime.control.observation import DRAFT_FEATURES, DRAFT_INDEX, GLOBAL_FEATURES, GLOBAL_INDEX, G, P, bounds
from runtime.control.topic import TopicPredictor
from runtime.core import GAMMAS, Phase
from runtime.curve_reader import CurveReader
from runtime.decoding.base import Decoder
from runtime.memory.manager import MemoryManager, Residency
from runtime.profile import CostModel
from runtime.state import Evidence, State

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
Probabilities = list[float]

_ADMIT, _DECODE, _COMPLETE = Phase
_LOADING, _RESIDENT = Residency.LOADING, Residency.RESIDENT
_FLOAT = struct.calcsize("f")
_GLOBALS, _PER_DRAFT = GLOBAL_INDEX["again_cost"] + 1, DRAFT_INDEX["confidence"] + 1
"""Features in front of those that do not change: verify costs; a draft's costs and its kind."""
_write_globals, _write_draft = (struct.Struct(f"{count}f").pack_into for count in (_GLOBALS, _PER_DRAFT))
_MOST = tuple(feature.high for feature in GLOBAL_FEATURES[:_GLOBALS])
_LEAST_FREE = GLOBAL_FEATURES[GLOBAL_INDEX["free_share"]].low
_MOST_LEFT, _MOST_STALE, _MOST_BEHIND, _MOST_COST = (
    DRAFT_FEATURES[DRAFT_INDEX[name]].high for name in ("load_left", "staleness", "catch_up_tokens", "catch_up_cost")
)


class Observer:
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
        self._plain_s = costs.plain_s(costs.profile.reference_context)
        self._budget = max(1, memory.config.budget_bytes)
        self._weightless = [i for i, draft in enumerate(self.drafts) if not draft.loadable]
        self._load_ratios: list[float] = costs.load_ratios.tolist()
        self._step_s = [costs.draft_s(i, 1) for i in range(len(self.drafts))]
        self._prefill = CurveReader(costs.profile.prefill)
        self._catch_up = [
            CurveReader(cost.forward) if draft.loadable else None
            for draft, cost in zip(self.drafts, costs.costs, strict=True)
        ]
        self._place = bytearray(self.static_vector().clip(*bounds(len(self.drafts))))
        self._placed = np.frombuffer(self._place, dtype=np.float32)

    def vector(self, state: State, evidence: Evidence, committed: int) -> Vector:
        """Float32, shape (G + drafts * P,), clipped to the features' ranges; the caller's own.

        Args:
            state: Where the session is.
            evidence: What was seen of the drafts; a weightless draft's confidence is looked up and noted there.
            committed: Tokens committed by the session in all.
        """
        loads = self._place_drafts(state, evidence, committed)
        self._place_globals(state, evidence, loads)
        return self._placed.copy()

    def static_vector(self) -> Vector:
        """What does not change: costs and sizes; all else 0. Shape as ``vector``'s."""
        vector: Vector = np.zeros(G + len(self.drafts) * P, dtype=np.float32)
        for gamma, ratio in zip(GAMMAS, self.costs.verify_ratios(GAMMAS), strict=True):
            vector[GLOBAL_INDEX[f"verify_ratio_{gamma}"]] = ratio
        per_draft = vector[G:].reshape(-1, P)
        per_draft[:, DRAFT_INDEX["step_ratio"]] = self.costs.step_ratios
        per_draft[:, DRAFT_INDEX["weightless"]] = [not draft.loadable for draft in self.drafts]
        per_draft[:, DRAFT_INDEX["size_share"]] = [draft.bytes / self._budget for draft in self.drafts]
        return vector

    def _place_globals(self, state: State, evidence: Evidence, loads: int) -> None:
        phase, match, memory, budget = state.phase, state.match, self.memory, self._budget
        prompt, context, admitting = state.prompt_tokens, state.context, phase is _ADMIT
        usable = match.tokens if admitting else 0
        again = usable if admitting else context
        counts = state.request is not None and (usable or not admitting)
        values = (
            admitting,
            phase is _DECODE,
            phase is _COMPLETE,
            prompt,
            usable,
            usable / max(prompt, 1),
            match.disk_tokens if admitting else 0,
            context,
            state.generated,
            state.room,
            state.last_drafted,
            state.last_accepted,
            max((budget - memory.aside_bytes - memory.used_bytes) / budget, _LEAST_FREE),
            memory.kv.bytes / budget,
            context * memory.config.kv_bytes_per_token / budget,
            state.since_decision,
            state.may_prefetch,
            loads,
            evidence.hit_share,
            self._prefill.at(again) / self._plain_s if counts else 0.0,
        )
        _write_globals(self._place, 0, *map(min, values, _MOST))

    def _place_drafts(self, state: State, evidence: Evidence, committed: int) -> int:
        """Returns how many of them are being loaded."""
        place, memory, decoder, plain_s = self._place, self.memory, self.decoder, self._plain_s
        decoding, asked, behind = state.phase is _DECODE, state.request is not None, state.prompt_tokens
        predicted, shift, confidence = self._expected(state, evidence)
        acceptance, seen_at = evidence.acceptance.tolist(), evidence.seen_at.tolist()
        loads, at = 0, G * _FLOAT
        for draft, held in enumerate(memory.states):
            residency, catch_up = held.residency, self._catch_up[draft]
            fraction = load_left = cost = 0.0
            if residency is not _RESIDENT:
                if residency is _LOADING:
                    loads, fraction = loads + 1, memory.loader.fraction(draft)
                load_left = self._load_ratios[draft] * (1.0 - fraction)
            if catch_up is not None and asked:
                if decoding:
                    behind = decoder.catch_up_tokens(draft)
                cost = (catch_up.at(behind + 1) - self._step_s[draft]) / plain_s
            stale = committed - seen_at[draft]
            _write_draft(
                place,
                at,
                residency is _RESIDENT,
                fraction,
                load_left if load_left < _MOST_LEFT else _MOST_LEFT,
                acceptance[draft],
                stale if stale < _MOST_STALE else _MOST_STALE,
                0.0 if catch_up is None else behind if behind < _MOST_BEHIND else _MOST_BEHIND,
                0.0 if cost < 0.0 else cost if cost < _MOST_COST else _MOST_COST,
                predicted[draft],
                shift[draft],
                confidence[draft],
            )
            at += P * _FLOAT
        return loads

    def _expected(self, state: State, evidence: Evidence) -> tuple[Probabilities, Probabilities, Probabilities]:
        """(predicted, next_shift, confidence) of every draft."""
        decoder, topic, phase = self.decoder, self.topic, state.phase
        if phase is _ADMIT and topic is not None and state.request is not None:
            predicted = topic.predict(state.request.prompt_ids).tolist()
        else:
            predicted = decoder.predicted().tolist()
        shift = [0.0] * len(self.drafts)
        if phase is _DECODE:
            for draft in self._weightless:
                evidence.confidence[draft] = decoder.lookup_confidence(draft)
            if topic is not None:
                shift = topic.next_shift(decoder.last_token()).tolist()
        return predicted, shift, evidence.confidence.tolist()
