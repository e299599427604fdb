"""Drives the session through one request at a time, whatever goes wrong on the way.

* A round that fails with a draft is decoded plain instead. If that works the draft is to blame: it is not used again.
* A request that fails otherwise fails alone. The next one begins with a fresh prefill.
* A controller that fails to decide gets the plain decision.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtime.control.guarded import GuardedController
from runtime.control.observation import Observation
from runtime.core import GAMMAS, PLAIN, Counters, Decision, Outcome, Phase
from runtime.decoding.stopping import VisibleText, has_ended
from runtime.live import Served
from runtime.server import trace
from runtime.server.faults import failed
from runtime.server.freeing import Freeing
from runtime.server.jobs import Delta, Failed, Finished, Job, Usage
from runtime.server.metrics import Metrics
from runtime.server.pressure import Pressure

LOGGER = logging.getLogger(__name__)

LOOK_S = 0.25
"""Least time between two looks at what is in memory; listing stored KV takes a moment."""


@dataclass
class Course:
    """How far the request in hand has come."""

    job: Job
    usage: Usage
    visible: VisibleText
    tokens: list[int] = field(default_factory=list)


class Driver:
    """Serves jobs, one after another, in the thread that owns the session.

    Args:
        served: What is served.
        metrics: Where everything is counted.
        upcoming: The job that will probably come next, so that its stored prefix can be brought from disk.
        keep_free_bytes: Memory of the machine that is to stay available; 0 = it is not watched.

    Attributes:
        state: What is in memory, as of the last look; replaced, never changed.
    """

    def __init__(
        self, served: Served, metrics: Metrics, upcoming: Callable[[], Job | None], keep_free_bytes: int = 0
    ) -> None:
        self._models, self._session, self._controller = served.models, served.session, served.controller
        self._metrics, self._upcoming = metrics, upcoming
        self._names = tuple(draft.name for draft in self._session.drafts)
        self._pressure = Pressure(self._session, keep_free_bytes, self._models.target.device)
        self._freeing = Freeing()
        self._broken: set[int] = set()
        self._expected: Job | None = None
        self._looked_s = float("-inf")
        self.state: dict[str, Any] = {}
        self._controller.begin_stream()
        self.look()

    def look(self) -> None:
        """Take in finished loads, give memory back, also for others' need, and note what is held, once in a while."""
        now_s = time.perf_counter()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._session.memory.poll()
            self._pressure.check()
            self._freeing.check()
            self._metrics.look(self._session)
            if isinstance(self._controller, GuardedController):
                self._metrics.look_at_guard(self._controller)
            self.state = trace.memory_state(self._session)

    def serve(self, job: Job) -> None:
        """Serve a job to its end; its last event says how that went."""
        text = VisibleText(self._models.text, job.request.stop)
        course = Course(job, Usage(len(job.request.prompt_ids), waited_s=time.perf_counter() - job.arrived_s), text)
        try:
            self._run(course)
            outcome = self._end(course)
        except Exception as error:  # this request fails, the server goes on
            LOGGER.exception("request %s failed", job.request.request_id)
            self._tidy()
            job.tell(Failed(job.given_up or failed(error)))
            outcome = "failed"
        self._session.counters.ttft_s.clear()  # a list that would grow with every request
        self._metrics.finish(course.usage, time.perf_counter() - job.arrived_s, outcome)
        self.look()

    # -- one request ---------------------------------------------------------------------------------------------

    def _run(self, course: Course) -> None:
        job, session = course.job, self._session
        session.start([job.request])
        if job.given_up is not None:
            session.cancel(job.request.request_id)
        finished = False
        while not finished:
            self._expect()
            phase = session.phase
            try:
                outcome = self._step(course)
            except Exception:
                if phase is not Phase.COMPLETE:
                    raise
                LOGGER.warning("the KV of %s could not be kept", job.request.request_id, exc_info=True)
                return  # its text is whole
            finished = outcome.request_finished
            self._tell(course, outcome)

    def _step(self, course: Course) -> Outcome:
        started_s = time.perf_counter()
        observation = self._session.observe()
        self._metrics.observe_s.observe(time.perf_counter() - started_s)
        decision = self._decide(course, observation)
        try:
            outcome = self._session.advance(decision)
        except Exception as error:
            if decision.draft is None or self._session.phase is not Phase.DECODE or not self._whole(course):
                raise
            self._session.observe()
            outcome = self._session.advance(PLAIN)
            self._blame(decision.draft, error)
        try:
            self._controller.learn(outcome)
        except Exception:
            LOGGER.warning("the controller could not learn from a step", exc_info=True)
        return outcome

    def _decide(self, course: Course, observation: Observation) -> Decision:
        for draft in self._broken:  # the mask is the session's own: it will not take such a decision either
            first = 1 + draft * len(GAMMAS)
            observation.mask[first : first + len(GAMMAS)] = False
        started_s = time.perf_counter()
        try:
            decision = self._controller.decide(observation)
        except Exception:
            LOGGER.warning("the controller could not decide; decoding plain", exc_info=True)
            self._metrics.decide_failures.inc()
            decision = PLAIN
        seconds = time.perf_counter() - started_s
        course.usage.decide_s += seconds
        self._metrics.decide_s.observe(seconds)
        return decision

    def _tell(self, course: Course, outcome: Outcome) -> None:
        job, usage = course.job, course.usage
        if outcome.tokens and not course.tokens:
            usage.ttft_s = time.perf_counter() - job.arrived_s
        usage.take(outcome)
        self._metrics.take(outcome, self._names)
        self._freeing.note_work()
        course.tokens.extend(outcome.tokens)
        texts = [course.visible.push([token]) for token in outcome.tokens]
        shown = None
        self.look()
        if job.trace:
            shown = {**trace.step(outcome, texts, self._names), "memory": self.state}
        text = "".join(texts)
        if text or shown is not None:
            job.tell(Delta(text, shown))

    def _end(self, course: Course) -> str:
        job, request = course.job, course.job.request
        if job.given_up is not None:
            job.tell(Failed(job.given_up))
            return job.given_up.code or "cancelled"
        rest = course.visible.finish()
        if rest:
            job.tell(Delta(rest))
        text = self._models.text(course.tokens) if request.stop else ""
        ended = has_ended(course.tokens, request.eos_ids, text, request.stop)
        job.tell(Finished("stop" if ended else "length", course.usage))
        return "finished"

    def _expect(self) -> None:
        """Let the stored prefix of the next request come from disk meanwhile."""
        job = self._upcoming()
        if job is None or job is self._expected or self._session.phase is not Phase.DECODE:
            return
        self._expected = job
        try:
            self._session.expect(job.request)
        except Exception:
            LOGGER.warning("the stored prefix of the next request could not be asked for", exc_info=True)

    # -- faults --------------------------------------------------------------------------------------------------

    def _whole(self, course: Course) -> bool:
        """Whether the decoder's text is the one that was told, so that decoding can go on from it."""
        known = len(course.job.request.prompt_ids) + len(course.tokens)
        return len(self._session.decoder.stored_tokens()) == known - 1 and not self._session.decoder.ended()

    def _blame(self, draft: int, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        LOGGER.warning("draft %s failed in a round and is not used again: %s", self._names[draft], reason)
        self._session.memory.states[draft].failed = reason
        self._broken.add(draft)

    def _tidy(self) -> None:
        """After a step that broke off: nothing is held, and counts add up, else every later step would fail."""
        self._session.start(())
        self._session.memory.prefixes.settle()
        total = self._session.counters
        if total.committed != total.admitted + total.accepted + total.corrections:
            self._session.counters = Counters()
