"""Evaluation: every controller serves the same streams, each stream on a fresh session with empty memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tqdm import tqdm

from agents.bootstrap import Speeds
from agents.workers import over_all_cores
from envs.workload import Stream
from runtime.control.base import Controller
from runtime.core import Outcome
from runtime.session import DecodeSession

Factory: TypeAlias = Callable[[], Controller]
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
        seconds: Time on the session's clock from the first decision to the end: live, deciding is part of it.
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


def speeds(results: Sequence[StreamResult]) -> Speeds:
    """Tokens and seconds by stream, for the bootstrap."""
    return Speeds([result.tokens for result in results], [result.seconds for result in results])


def tokens_per_s(results: Sequence[StreamResult]) -> float:
    """Total tokens per second."""
    return sum(result.tokens for result in results) / sum(result.seconds for result in results)


def evaluate(
    factories: Mapping[str, Factory],
    streams: Sequence[Stream],
    make_session: Callable[[], DecodeSession],
    seed: int = 0,
    reference: str | None = None,
    progress: bool = False,
    workers: int = 1,
) -> list[StreamResult]:
    """Let every controller serve every stream.

    Args:
        factories: Controllers by name in the report; each is built once and serves the streams in order.
        streams: The streams.
        make_session: A fresh session with empty memory.
        seed: Noted in the results.
        reference: Controller whose texts the others' must equal, e.g. ``plain`` on real models; None = the texts must
            equal the traces'.
        progress: Whether to show a progress bar.
        workers: Processes that controllers are spread over; 0 = one for each core. Real models want one.

    Returns:
        By controller, then by stream.

    Raises:
        ValueError: If ``reference`` is not among the controllers, or there is one and several workers.
    """
    if reference is not None and (reference not in factories or workers != 1):
        raise ValueError(f"reference {reference!r}: expected one of {', '.join(factories)} and one worker")
    expected = [traced_texts(stream) for stream in streams] if reference is None else None
    names = sorted(factories, key=lambda name: name != reference)  # stable: the reference first
    found: dict[str, list[StreamResult]] = {}

    def judge(name: str) -> tuple[list[StreamResult], list[Texts]]:
        controller = factories[name]()
        pairs = [
            serve(controller, stream, make_session(), name, seed, index, expected[index] if expected else None)
            for index, stream in enumerate(streams)
        ]
        return [result for result, _ in pairs], [texts for _, texts in pairs]

    with tqdm(total=len(names), desc="evaluating", unit="controllers", disable=not progress) as bar:
        for index, (results, texts) in over_all_cores(judge, names, workers):
            found[names[index]] = results
            expected = texts if expected is None else expected
            bar.update()
    return [result for name in factories for result in found[name]]


def traced_texts(stream: Stream) -> Texts:
    """The texts that the traces hold, cut to what is asked for."""
    return tuple(item.trace.output_ids[: item.request.max_new_tokens] for item in stream)


def serve(
    controller: Controller,
    stream: Stream,
    session: DecodeSession,
    name: str,
    seed: int = 0,
    index: int = 0,
    expected: Texts | None = None,
) -> tuple[StreamResult, Texts]:
    """One controller, one stream, one fresh session.

    Args:
        controller: Decides.
        stream: At least one request.
        session: Fresh.
        name: Controller's name in the report.
        seed: Noted in the result.
        index: Noted in the result.
        expected: Texts to compare with; None = nothing to compare, ``identical`` is true.

    Returns:
        The result, and the texts.
    """
    texts: list[list[int]] = [[] for _ in stream]
    decide_us: list[float] = []
    ends_s: list[float] = []
    speculative = request = 0
    controller.begin_stream()
    session.start(item.request for item in stream)
    started_s = session.clock.now_s()
    outcome: Outcome | None = None
    while outcome is None or not outcome.stream_finished:
        observation = session.observe()
        began_ns = time.perf_counter_ns()
        decision = controller.decide(observation)
        decide_us.append((time.perf_counter_ns() - began_ns) / 1000.0)
        outcome = session.advance(decision)
        controller.learn(outcome)
        texts[request].extend(outcome.tokens)
        if outcome.request_finished:
            ends_s.append(session.clock.now_s())
            request += 1
        speculative += outcome.round is not None and outcome.decision.draft is not None
    written = tuple(tuple(text) for text in texts)
    total = session.counters
    result = StreamResult(
        controller=name,
        seed=seed,
        stream=index,
        requests=request,
        tokens=total.committed,
        seconds=session.clock.now_s() - started_s,
        ttft_s=tuple(total.ttft_s),
        stall_s=total.stall_s,
        loads=total.loads,
        wasted_loads=total.wasted_loads,
        speculative_rounds=speculative,
        drafted=total.drafted,
        accepted=total.accepted,
        kv_hit_tokens=total.kv_hit_tokens,
        peak_budget_bytes=total.peak_budget_bytes,
        decide_us=tuple(decide_us),
        identical=expected is None or written == expected,
        illegal=total.illegal,
        guard_forwards=total.guard_forwards,
        request_s=tuple(end_s - begin_s for begin_s, end_s in pairwise((started_s, *ends_s))),
        request_tokens=tuple(len(text) for text in written),
    )
    return result, written
