"""One controller serves one stream, request by request, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from envs.workload import Stream
from runtime.control.base import Controller
from runtime.session import DecodeSession

Texts: TypeAlias = tuple[tuple[int, ...], ...]
"""Committed token ids of every request of a stream."""


@dataclass(frozen=True)
class StreamResult:
    """What one controller did with one stream.

    Attributes:
        controller: Name in reports.
        seed: Seed of streams and controller.
        stream: Index of the stream.
        requests: Requests served.
        tokens: Tokens committed.
        seconds: Time on the session's clock, all requests together: live, deciding is part of it.
        ttft_s: Time to the first token, by request.
        stall_s: Time spent waiting for loads.
        loads: Loads started.
        wasted_loads: Drafts dropped before they were used.
        speculative_rounds: Rounds with a draft.
        drafted: Tokens verified.
        accepted: Tokens accepted.
        kv_hit_tokens: Prompt tokens taken from stored prefixes.
        peak_budget_bytes: Most of the budget in use.
        decide_us: Wall time of every decision in microseconds.
        identical: Whether every text is the expected one, token for token.
        illegal: Parts of decisions that fell back.
        guard_forwards: Forwards that re-decided a near-tie.
        request_s: Time by request, the first decision about it to the last.
        request_tokens: Tokens committed by request.
    """

    controller: str
    seed: int
    stream: int
    requests: int
    tokens: int
    seconds: float
    ttft_s: tuple[float, ...] = ()
    stall_s: float = 0.0
    loads: int = 0
    wasted_loads: int = 0
    speculative_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    kv_hit_tokens: int = 0
    peak_budget_bytes: int = 0
    decide_us: tuple[float, ...] = ()
    identical: bool = True
    illegal: int = 0
    guard_forwards: int = 0
    request_s: tuple[float, ...] = ()
    request_tokens: tuple[int, ...] = ()


class Serving:
    """A stream that is being served. Between two requests other controllers may serve theirs.

    Args:
        controller: Decides; it begins a stream here.
        stream: At least one request.
        session: Fresh.
        name: Controller's name in the report.
        seed: Noted in the result.
        index: Noted in the result.
    """

    def __init__(
        self, controller: Controller, stream: Stream, session: DecodeSession, name: str, seed: int = 0, index: int = 0
    ) -> None:
        self._controller, self._session = controller, session
        self._name, self._seed, self._index = name, seed, index
        self._texts: list[tuple[int, ...]] = []
        self._request_s: list[float] = []
        self._decide_us: list[float] = []
        self._speculative = 0
        controller.begin_stream()
        session.start(item.request for item in stream)

    def answer(self) -> bool:
        """Serve the next request; returns whether it was the last."""
        controller, session = self._controller, self._session
        text: list[int] = []
        began_s, finished, last = session.clock.now_s(), False, False
        while not finished:
            observation = session.observe()
            began_ns = time.perf_counter_ns()
            decision = controller.decide(observation)
            self._decide_us.append((time.perf_counter_ns() - began_ns) / 1000.0)
            outcome = session.advance(decision)
            controller.learn(outcome)
            text.extend(outcome.tokens)
            self._speculative += outcome.round is not None and outcome.decision.draft is not None
            finished, last = outcome.request_finished, outcome.stream_finished
        self._texts.append(tuple(text))
        self._request_s.append(session.clock.now_s() - began_s)
        return last

    def result(self, expected: Texts | None = None) -> tuple[StreamResult, Texts]:
        """What came of it, and the texts.

        Args:
            expected: Texts to compare with; None = nothing to compare, ``identical`` is true.
        """
        total, texts = self._session.counters, tuple(self._texts)
        result = StreamResult(
            controller=self._name,
            seed=self._seed,
            stream=self._index,
            requests=len(texts),
            tokens=total.committed,
            seconds=sum(self._request_s),
            ttft_s=tuple(total.ttft_s),
            stall_s=total.stall_s,
            loads=total.loads,
            wasted_loads=total.wasted_loads,
            speculative_rounds=self._speculative,
            drafted=total.drafted,
            accepted=total.accepted,
            kv_hit_tokens=total.kv_hit_tokens,
            peak_budget_bytes=total.peak_budget_bytes,
            decide_us=tuple(self._decide_us),
            identical=expected is None or texts == expected,
            illegal=total.illegal,
            guard_forwards=total.guard_forwards,
            request_s=tuple(self._request_s),
            request_tokens=tuple(map(len, texts)),
        )
        return result, texts


def serve(
    controller: Controller,
    stream: Stream,
    session: DecodeSession,
    name: str,
    seed: int = 0,
    index: int = 0,
    expected: Texts | None = None,
) -> tuple[StreamResult, Texts]:
    """A stream from its first request to its last; arguments and what is returned as in ``Serving``."""
    serving = Serving(controller, stream, session, name, seed, index)
    while not serving.answer():
        pass
    return serving.result(expected)


def answer_in_turn(servings: Sequence[Serving], requests: int, first: int) -> None:
    """The same stream for all: each answers a request before any goes on; who is first rotates from ``first`` on."""
    for turn in range(first, first + requests):
        for place in range(len(servings)):
            servings[(turn + place) % len(servings)].answer()
