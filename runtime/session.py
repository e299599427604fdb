"""The one loop: observe, decide, advance. The only place that says what a decision means.

Training, evaluation and deployment all run this class; they differ in the decoder, loader and clock behind it (real
models on the wall clock, or a trace on a virtual one) and in who decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from runtime.control.action import ActionCodec, BoolMask
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, Observation, P, bounds
from runtime.control.topic import TopicPredictor
from runtime.core import (
    DEFAULT_DECISION_INTERVAL,
    GAMMAS,
    STOP_LEVELS,
    Counters,
    Decision,
    DraftSpec,
    KVRecord,
    Outcome,
    Phase,
    Request,
    Victim,
)
from runtime.counting import Tally, count_tokens
from runtime.decoding.base import Clock, Decoder
from runtime.decoding.stopping import CancelFlag, Cancellable, Cancelled
from runtime.memory.kv_store import Match
from runtime.memory.kv_tree import BLOCK_TOKENS
from runtime.memory.manager import MemoryManager
from runtime.profile import CostModel

LOGGER = logging.getLogger(__name__)

EVIDENCE_DECAY = 0.93
"""Weight that an acceptance estimate keeps for each further scored token."""


@dataclass(frozen=True)
class SessionConfig:
    """How a session is run.

    Attributes:
        decision_interval: Rounds between two decisions about prefetching.
    """

    decision_interval: int = DEFAULT_DECISION_INTERVAL


class DecodeSession:
    """Serves a stream of requests, one decision at a time.

    Call ``start`` with the requests, then ``observe`` and ``advance`` until an outcome says ``stream_finished``.
    Drafts and stored KV stay in memory from request to request, and from stream to stream until ``start`` is called
    on a fresh session.
    """

    def __init__(
        self,
        decoder: Decoder,
        memory: MemoryManager,
        clock: Clock,
        costs: CostModel,
        topic: TopicPredictor | None = None,
        config: SessionConfig | None = None,
    ) -> None:
        self.decoder, self.memory, self.clock, self.costs = decoder, memory, clock, costs
        self.drafts: tuple[DraftSpec, ...] = memory.drafts
        self.topic = topic
        self.config = config or SessionConfig()
        self.codec = ActionCodec(len(self.drafts))
        self.counters = Counters()
        self._tally = Tally()
        self._cancelled, self._swap = CancelFlag(), threading.RLock()
        if isinstance(decoder, Cancellable):
            decoder.watch(self._cancelled)
        self.phase = Phase.COMPLETE
        self._requests: Iterator[Request] = iter(())
        self._request: Request | None = None
        self._match = Match()
        self.kv = KVRecord("")
        self._generated = self._since_decision = self._last_drafted = self._last_accepted = 0
        self._observed: BoolMask | None = None
        n = len(self.drafts)
        self._acceptance = np.array([d.expected for d in self.drafts], dtype=np.float32)
        self._confidence = self._acceptance.copy()
        self._evidence_at = np.zeros(n, dtype=np.float32)  # committed tokens at the last evidence
        self._low, self._high = bounds(n)
        self._static = self._static_vector()
        self._load_ratios: list[float] = costs.load_ratios.tolist()
        self._plain_s = costs.plain_s(costs.profile.reference_context)
        self._weightless = [i for i, d in enumerate(self.drafts) if not d.loadable]
        if not any(memory.could_ever_fit(i) for i, d in enumerate(self.drafts) if d.loadable):
            smallest = min((d.bytes for d in self.drafts if d.loadable), default=0)
            LOGGER.warning(
                "no draft model fits: the budget is %d bytes, the smallest draft needs %d more than the workspace of "
                "%d; decoding without draft models, raise the budget to use them",
                memory.config.budget_bytes,
                smallest,
                memory.config.workspace_bytes,
            )

    # -- the loop ------------------------------------------------------------------------------------------------

    def start(self, requests: Iterable[Request]) -> bool:
        """Take a stream of requests. False if it is empty."""
        self._requests = iter(requests)
        return self._admit_next()

    def expect(self, request: Request) -> bool:
        """A request will come: start to bring its stored prefix from disk. Returns whether there was need."""
        return self.memory.expect(request.prompt_ids, Victim.KV, self.clock.now_s())

    def observe(self) -> Observation:
        """What is to be decided now, and what is known for it."""
        self._take_arrivals()
        self._observed = self._mask()
        return Observation(self.phase, self._vector(), self._observed)

    def advance(self, decision: Decision) -> Outcome:
        """Carry a decision out. Illegal parts fall back (never to a stall) and are counted."""
        if self._request is None:
            raise RuntimeError("advance() without a request: call start() with at least one request first")
        self._take_arrivals()
        legal, illegal = self._sanitise(decision, self._mask() if self._observed is None else self._observed)
        self._observed = None
        started_s = self.clock.now_s()
        step = {Phase.ADMIT: self._admit, Phase.DECODE: self._decode, Phase.COMPLETE: self._complete}[self.phase]
        try:
            if self._cancelled() and self.phase is Phase.DECODE:
                raise Cancelled
            outcome = step(legal, illegal, started_s)
        except Cancelled:
            outcome = Outcome(self.phase, legal, self.clock.now_s() - started_s, 0.0, illegal=illegal)
        if self._cancelled() and outcome.phase is not Phase.COMPLETE and self.phase is not Phase.COMPLETE:
            self.phase, outcome = Phase.COMPLETE, replace(outcome, cancelled=True)
        self._count(outcome)
        return outcome

    def cancel(self, request_id: str | None = None) -> bool:
        """Give up the request in hand, from any thread or signal handler; its COMPLETE step comes next.

        A step in progress ends before its next forward; what was committed stays.

        Args:
            request_id: Only if this is its name; None = whichever it is.

        Returns:
            Whether there was such a request. One whose text has ended already just completes.
        """
        with self._swap:
            if self._request is None or request_id not in (None, self._request.request_id):
                return False
            self._cancelled.raised = True
            return True

    # -- the three phases ----------------------------------------------------------------------------------------

    def _admit(self, decision: Decision, illegal: int, started_s: float) -> Outcome:
        request, usable = self._current(), self._match
        match = self.memory.reuse(usable, decision.victim, started_s) if decision.kv else Match()
        self._take_arrivals()
        wait_s = self.clock.now_s() - started_s if usable.disk_tokens and decision.kv else 0.0
        self._prefetch(decision, keep=None)
        try:
            prefill = self.decoder.begin(request, match.tokens, [node.payload for node in match.path])
        finally:
            self.memory.settle()
        self._generated = 1
        self._note_end()
        seconds, whole_s = self.clock.now_s() - started_s, self.costs.prefill_s(len(request.prompt_ids), 0)
        self.counters.ttft_s.append(seconds)
        self.kv = KVRecord(
            request.request_id,
            usable.tokens,
            prefill.reused_tokens,
            max(0, prefill.reused_tokens - (usable.tokens - usable.disk_tokens)),
            wait_s,
            seconds,
            whole_s - seconds if prefill.reused_tokens else 0.0,
        )
        return Outcome(
            Phase.ADMIT,
            decision,
            seconds,
            whole_s,
            tokens=(prefill.token,),
            prefill_tokens=prefill.prefill_tokens,
            reused_tokens=prefill.reused_tokens,
            illegal=illegal,
        )

    def _decode(self, decision: Decision, illegal: int, started_s: float) -> Outcome:
        stall_s = 0.0
        if decision.wait and decision.draft is not None and not self.memory.resident(decision.draft):
            there = self.memory.load_now(decision.draft, decision.victim, started_s, self._forget_evicted)
            self._take_arrivals()
            stall_s = self.clock.now_s() - started_s
            if not there:
                decision = decision._replace(draft=None, gamma=0)
        self._prefetch(decision, keep=decision.draft)
        context = len(self._current().prompt_ids) + self._generated
        payload = None
        if decision.draft is not None:
            self.memory.touch(decision.draft, started_s)
            payload = self.memory.payload(decision.draft)
        done = self.decoder.round(decision.draft, payload, decision.gamma, STOP_LEVELS[decision.stop])
        self._generated += len(done.tokens)
        self._last_drafted, self._last_accepted = done.drafted, done.accepted
        self._note_end()
        if decision.draft is not None:
            matches = done.accepted + done.scored[0]
            positions = min(done.drafted, done.accepted + 1) + done.scored[1]
            self._note_evidence(decision.draft, matches, positions, done.confidence)
        plain_s = sum(self.costs.plain_s(context + i) for i in range(len(done.tokens)))
        return Outcome(
            Phase.DECODE, decision, self.clock.now_s() - started_s, plain_s, stall_s, done, done.tokens, illegal=illegal
        )

    def _complete(self, decision: Decision, illegal: int, started_s: float) -> Outcome:
        record = self.kv
        if decision.kv:
            copy = partial(self.decoder.store, piece=BLOCK_TOKENS)
            kept = self.memory.retain(self.decoder.stored_tokens(), copy, decision.victim, started_s)
            record.retained_tokens = kept
            record.retained_bytes = kept * self.memory.config.kv_bytes_per_token
        seconds = record.retain_s = self.clock.now_s() - started_s
        more = self._admit_next()
        return Outcome(
            Phase.COMPLETE,
            decision,
            seconds,
            0.0,
            illegal=illegal,
            request_finished=True,
            stream_finished=not more,
            kv=record,
        )

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def request(self) -> Request | None:
        """The request in hand."""
        return self._request

    def _current(self) -> Request:
        assert self._request is not None, "no request in hand"
        return self._request

    def _admit_next(self) -> bool:
        request = next(self._requests, None)
        with self._swap:  # a cancellation is of one request
            self._request, self._cancelled.raised = request, False
        if self._request is None:
            return False
        self.phase = Phase.ADMIT
        self._match = self.memory.admit(self._request.prompt_ids)
        self.kv = KVRecord(self._request.request_id)
        self._generated = self._last_drafted = self._last_accepted = 0
        self._since_decision = self.config.decision_interval
        return True

    def _note_end(self) -> None:
        self.phase = Phase.COMPLETE if self.decoder.ended() else Phase.DECODE

    def _note_evidence(self, draft: int, matches: int, positions: int, confidence: float) -> None:
        if positions:
            kept = EVIDENCE_DECAY**positions
            self._acceptance[draft] = self._acceptance[draft] * kept + (1.0 - kept) * matches / positions
            self._evidence_at[draft] = self.counters.committed
        if confidence == confidence:  # not NaN
            self._confidence[draft] = confidence

    def _take_arrivals(self) -> None:
        self.memory.poll()
        self._forget_evicted()

    def _forget_evicted(self) -> None:
        for draft in self.memory.evicted:
            self.decoder.forget_draft(draft)
        self.memory.evicted.clear()

    def _prefetch(self, decision: Decision, keep: int | None) -> None:
        if self._may_prefetch():
            self._since_decision = 0
        self._since_decision += self.phase is Phase.DECODE
        if decision.prefetch is not None:
            self.memory.prefetch(decision.prefetch, decision.victim, keep, self.clock.now_s())
            self._take_arrivals()

    def _may_prefetch(self) -> bool:
        return self.phase is not Phase.COMPLETE and self._since_decision >= self.config.decision_interval

    def _count(self, outcome: Outcome) -> None:
        total = self.counters
        if outcome.phase is Phase.ADMIT:
            self._tally = Tally()
        if outcome.phase is not Phase.COMPLETE:
            count_tokens(total, self._tally, outcome, self._generated, self.phase is Phase.COMPLETE)
        if outcome.round is not None:
            total.rounds += 1
            total.guard_forwards += outcome.round.guard_forwards
        total.cancelled += outcome.cancelled
        total.seconds += outcome.seconds
        total.stall_s += outcome.stall_s
        total.kv_hit_tokens += outcome.reused_tokens
        if outcome.kv is not None:
            total.kv_disk_tokens += outcome.kv.disk_tokens
            total.kv_saved_s += outcome.kv.saved_s
            total.kv_retained_bytes += outcome.kv.retained_bytes
        total.prefill_tokens += outcome.prefill_tokens
        total.illegal += outcome.illegal
        total.loads, total.wasted_loads = self.memory.loads, self.memory.wasted_loads
        total.evictions, total.peak_budget_bytes = self.memory.evictions, self.memory.peak_bytes

    # -- legality ------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        return self._current().max_new_tokens - self._generated

    def _mask(self) -> BoolMask:
        n, offsets, memory = len(self.drafts), self.codec.offsets, self.memory
        mask = np.zeros(offsets[-1], dtype=np.bool_)
        mask[list(offsets[:-1])] = True  # the first value of every dimension is always legal
        if self._request is None:
            return mask
        room_needed = False
        if self.phase is Phase.DECODE:
            mask[offsets[1] : offsets[2]] = True
            context, room = len(self._request.prompt_ids) + self._generated, self._room()
            fitting = sum(gamma < room for gamma in GAMMAS)
            for i, draft in enumerate(self.drafts):
                if memory.resident(i) and context + GAMMAS[-1] < draft.context_limit:
                    first = 1 + i * len(GAMMAS)
                    mask[first : first + fitting] = True
        if self._may_prefetch():
            for i in range(n):
                mask[offsets[2] + 1 + i] = may = memory.can_prefetch(i)
                room_needed |= may
        if self.phase is Phase.ADMIT:
            mask[offsets[3] + 1] = self._match.tokens > 0
        elif self.phase is Phase.COMPLETE:
            mask[offsets[3] + 1] = may = memory.retainable(self.decoder.stored_tokens()) > 0
            room_needed |= may
        if room_needed:
            mask[offsets[4] + 1] = kv = memory.kv.evictable
            mask[offsets[4]] = memory.evictable_draft(None) or not kv
        return mask

    def _sanitise(self, decision: Decision, mask: BoolMask) -> tuple[Decision, int]:
        """The fallback rule: an illegal draft → plain; too long a gamma → the longest legal one; else → nothing."""
        offsets, illegal = self.codec.offsets, 0
        if decision.draft is not None:
            first = 1 + decision.draft * len(GAMMAS)
            legal = mask[first : first + len(GAMMAS)]
            waits = decision.wait and self.phase is Phase.DECODE and self._room() > 1
            if legal.any():
                longest = GAMMAS[int(legal.sum()) - 1]
                if decision.gamma > longest:
                    decision, illegal = decision._replace(gamma=longest), illegal + 1
            elif waits:
                longest = max(gamma for gamma in GAMMAS if gamma < self._room())
                decision = decision._replace(gamma=min(decision.gamma, longest))
            else:
                decision, illegal = decision._replace(draft=None, gamma=0), illegal + 1
        if decision.prefetch is not None and not mask[offsets[2] + 1 + decision.prefetch]:
            decision, illegal = decision._replace(prefetch=None), illegal + 1
        if decision.kv and not mask[offsets[3] + 1]:
            decision, illegal = decision._replace(kv=False), illegal + 1
        if not mask[offsets[4] + int(decision.victim)]:
            decision = decision._replace(victim=Victim(1 - decision.victim))
        return decision, illegal

    # -- the vector ----------------------------------------------------------------------------------------------

    def _static_vector(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        vector = np.zeros_like(self._low)
        for gamma, ratio in zip(GAMMAS, self.costs.verify_ratios(GAMMAS), strict=True):
            vector[GLOBAL_INDEX[f"verify_ratio_{gamma}"]] = ratio
        per_draft = vector[G:].reshape(-1, P)
        per_draft[:, DRAFT_INDEX["step_ratio"]] = self.costs.step_ratios
        per_draft[:, DRAFT_INDEX["weightless"]] = [not d.loadable for d in self.drafts]
        budget = max(1, self.memory.config.budget_bytes)
        per_draft[:, DRAFT_INDEX["size_share"]] = [d.bytes / budget for d in self.drafts]
        return vector

    def _vector(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        vector = self._static.copy()
        vector[int(self.phase)] = 1.0
        request, memory, budget = self._request, self.memory, max(1, self.memory.config.budget_bytes)
        prompt = 0 if request is None else len(request.prompt_ids)
        kv_bytes = memory.kv.bytes
        usable = self._match.tokens if self.phase is Phase.ADMIT else 0
        vector[3:18] = (
            prompt,
            usable,
            usable / max(prompt, 1),
            self._match.disk_tokens if self.phase is Phase.ADMIT else 0,
            prompt + self._generated,
            self._generated,
            0 if request is None else self._room(),
            self._last_drafted,
            self._last_accepted,
            (budget - memory.used_bytes) / budget,
            kv_bytes / budget,
            (prompt + self._generated) * memory.config.kv_bytes_per_token / budget,
            self._since_decision,
            self._may_prefetch(),
            sum(memory.loading(i) for i in range(len(self.drafts))),
        )
        self._fill_drafts(vector[G:].reshape(-1, P))
        return np.clip(vector, self._low, self._high, out=vector)

    def _fill_drafts(self, rows: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
        rows[:, 0:3] = [self._progress(i) for i in range(len(self.drafts))]
        rows[:, DRAFT_INDEX["acceptance"]] = self._acceptance
        rows[:, DRAFT_INDEX["staleness"]] = self.counters.committed - self._evidence_at
        rows[:, 5:7] = [self._catch_up(i) for i in range(len(self.drafts))]
        rows[:, DRAFT_INDEX["predicted"]] = self._predicted()
        if self.phase is Phase.DECODE:
            for i in self._weightless:
                self._confidence[i] = self.decoder.lookup_confidence(i)
        rows[:, DRAFT_INDEX["confidence"]] = self._confidence

    def _progress(self, draft: int) -> tuple[float, float, float]:
        """(resident, loading_fraction, load_left) of a draft."""
        if self.memory.resident(draft):
            return 1.0, 0.0, 0.0
        fraction = self.memory.loader.fraction(draft) if self.memory.loading(draft) else 0.0
        return 0.0, fraction, self._load_ratios[draft] * (1.0 - fraction)

    def _catch_up(self, draft: int) -> tuple[float, float]:
        """(catch_up_tokens, catch_up_cost) of a draft."""
        if self._request is None or not self.drafts[draft].loadable:
            return 0.0, 0.0
        prompt = len(self._request.prompt_ids)
        behind = self.decoder.catch_up_tokens(draft) if self.phase is Phase.DECODE else prompt
        extra_s = self.costs.draft_s(draft, behind + 1) - self.costs.draft_s(draft, 1)
        return behind, extra_s / self._plain_s

    def _predicted(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        if self.phase is Phase.ADMIT and self.topic is not None and self._request is not None:
            return self.topic.predict(self._request.prompt_ids)
        predicted: np.ndarray[tuple[int], np.dtype[np.float32]] = self.decoder.predicted()
        return predicted
