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

from runtime.control.action import ActionCodec, BoolMask
from runtime.control.observation import Observation
from runtime.control.topic import TopicPredictor
from runtime.core import (
    BLOCK_TOKENS,
    DEFAULT_DECISION_INTERVAL,
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
from runtime.counting import Tally, count_costs, count_tokens
from runtime.decoding.base import Clock, Decoder
from runtime.decoding.stopping import CancelFlag, Cancellable, Cancelled
from runtime.legality import legal_mask, sanitised
from runtime.memory.manager import MemoryManager
from runtime.memory.prefixes import Reused
from runtime.observer import Observer
from runtime.profile import CostModel
from runtime.state import Evidence, State

LOGGER = logging.getLogger(__name__)


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
        self._requests: Iterator[Request] = iter(())
        self._state = State(self.config.decision_interval)
        self._evidence = Evidence(self.drafts)
        self._observer = Observer(memory, decoder, costs, topic)
        self._observed: BoolMask | None = None
        self.kv = KVRecord("")
        self._last_draft: int | None = None
        memory.on_evict = decoder.forget_draft
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
        """A request will come: start to bring its stored prefix from disk. Returns whether there was need.

        The draft of the last round stays. What was observed before may have changed.
        """
        self._observed = None
        return self.memory.prefixes.expect(request.prompt_ids, Victim.KV, self._last_draft, self.clock.now_s())

    def set_aside(self, aside_bytes: int) -> None:
        """Do without a part of the memory budget, see ``MemoryManager.set_aside``; what the request in hand uses stays.

        What was observed before may have changed.
        """
        self._observed = None
        decoding = self._state.request is not None and self._state.phase is Phase.DECODE
        keep = self._last_draft if decoding else None
        self.memory.set_aside(aside_bytes, keep, self.clock.now_s())

    def observe(self) -> Observation:
        """What is to be decided now, and what is known for it."""
        self.memory.poll()
        self._observed = self._mask()
        vector = self._observer.vector(self._state, self._evidence, self.counters.committed)
        return Observation(self._state.phase, vector, self._observed)

    def advance(self, decision: Decision) -> Outcome:
        """Carry a decision out. Illegal parts fall back (never to a stall) and are counted."""
        if self._state.request is None:
            raise RuntimeError("advance() without a request: call start() with at least one request first")
        self.memory.poll()
        mask = self._mask() if self._observed is None else self._observed
        legal, illegal = sanitised(decision, mask, self._state, self.codec)
        self._observed = None
        started_s = self.clock.now_s()
        step = {Phase.ADMIT: self._admit, Phase.DECODE: self._decode, Phase.COMPLETE: self._complete}[self._state.phase]
        try:
            if self._cancelled() and self._state.phase is Phase.DECODE:
                raise Cancelled
            outcome = step(legal, illegal, started_s)
        except Cancelled:
            outcome = Outcome(self._state.phase, legal, self.clock.now_s() - started_s, 0.0, illegal=illegal)
        if self._cancelled() and outcome.phase is not Phase.COMPLETE and self._state.phase is not Phase.COMPLETE:
            self._state.phase, outcome = Phase.COMPLETE, replace(outcome, cancelled=True)
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
            if self._state.request is None or request_id not in (None, self._state.request.request_id):
                return False
            self._cancelled.raised = True
            return True

    # -- the three phases ----------------------------------------------------------------------------------------

    def _admit(self, decision: Decision, illegal: int, started_s: float) -> Outcome:
        request, prefixes = self._current(), self.memory.prefixes
        used = prefixes.reuse(self._state.match, decision.victim, started_s) if decision.kv else Reused()
        wait_s = self.clock.now_s() - started_s if used.waited else 0.0
        self._prefetch(decision, keep=None)
        try:
            prefill = self.decoder.begin(request, used.match.tokens, used.payloads)
        finally:
            prefixes.settle()
        self._state.generated = 1
        self._note_end()
        seconds, whole_s = self.clock.now_s() - started_s, self.costs.prefill_s(len(request.prompt_ids), 0)
        self.counters.ttft_s.append(seconds)
        self.kv = KVRecord(
            request.request_id,
            usable_tokens=self._state.match.tokens,
            reused_tokens=prefill.reused_tokens,
            disk_tokens=used.disk_tokens,
            wait_s=wait_s,
            admit_s=seconds,
            saved_s=whole_s - seconds if used.match.tokens else 0.0,
        )
        return Outcome(
            Phase.ADMIT,
            decision,
            seconds,
            whole_s,
            wait_s,
            tokens=(prefill.token,),
            prefill_tokens=prefill.prefill_tokens,
            reused_tokens=prefill.reused_tokens,
            guard_forwards=prefill.guard_forwards,
            illegal=illegal,
        )

    def _decode(self, decision: Decision, illegal: int, started_s: float) -> Outcome:
        stall_s = 0.0
        if decision.wait and decision.draft is not None and not self.memory.resident(decision.draft):
            there = self.memory.load_now(decision.draft, decision.victim, started_s)
            stall_s = self.clock.now_s() - started_s
            if not there:
                decision = decision._replace(draft=None, gamma=0)
        self._prefetch(decision, keep=decision.draft)
        context = self._state.context
        payload, self._last_draft = None, decision.draft
        if decision.draft is not None:
            self.memory.touch(decision.draft, started_s)
            payload = self.memory.payload(decision.draft)
        threshold = STOP_LEVELS[decision.stop]
        done = self.decoder.round(decision.draft, payload, decision.gamma, threshold, decision.rule)
        self._state.generated += len(done.tokens)
        self._state.last_drafted, self._state.last_accepted = done.drafted, done.accepted
        self._note_end()
        if decision.draft is not None:
            matches, positions = done.evidence
            self._evidence.note(decision.draft, matches, positions, done.confidence, self.counters.committed)
        plain_s = sum(self.costs.plain_s(context + i) for i in range(len(done.tokens)))
        return Outcome(
            Phase.DECODE, decision, self.clock.now_s() - started_s, plain_s, stall_s, done, done.tokens, illegal=illegal
        )

    def _complete(self, decision: Decision, illegal: int, started_s: float) -> Outcome:
        record = self.kv
        if decision.kv:
            copy = partial(self.decoder.store, piece=BLOCK_TOKENS)
            kept = self.memory.prefixes.retain(self.decoder.stored_tokens(), copy, decision.victim, started_s)
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
    def phase(self) -> Phase:
        """What is decided next."""
        return self._state.phase

    @property
    def request(self) -> Request | None:
        """The request in hand."""
        return self._state.request

    def _current(self) -> Request:
        assert self._state.request is not None, "no request in hand"
        return self._state.request

    def _admit_next(self) -> bool:
        request = next(self._requests, None)
        with self._swap:  # a cancellation is of one request
            self._state.request, self._cancelled.raised = request, False
        if request is None:
            return False
        self._state.admit(request, self.memory.prefixes.admit(request.prompt_ids))
        self._evidence.note_request(self._state.match.tokens / len(request.prompt_ids))
        self.kv = KVRecord(request.request_id)
        return True

    def _mask(self) -> BoolMask:
        return legal_mask(self._state, self.memory, self.decoder, self.codec)

    def _note_end(self) -> None:
        self._state.phase = Phase.COMPLETE if self.decoder.ended() else Phase.DECODE

    def _prefetch(self, decision: Decision, keep: int | None) -> None:
        if self._state.may_prefetch:
            self._state.since_decision = 0
        self._state.since_decision += self._state.phase is Phase.DECODE
        if decision.prefetch is not None:
            self.memory.prefetch(decision.prefetch, decision.victim, keep, self.clock.now_s())

    def _count(self, outcome: Outcome) -> None:
        if outcome.phase is Phase.ADMIT:
            self._tally = Tally()
        if outcome.phase is not Phase.COMPLETE:
            state = self._state
            count_tokens(self.counters, self._tally, outcome, state.generated, state.phase is Phase.COMPLETE)
        count_costs(self.counters, outcome)
        self.memory.count(self.counters)
