"""Serve random streams under random decisions, and compare every text with the target's own."""

from __future__ import annotations

import dataclasses
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.exactness.tally import Difference, Tally
from benchmarks.random_controller import RandomController
from envs.traces import TraceSet
from envs.workload import Item, Stream, Workload, WorkloadConfig
from runtime.control.base import Controller
from runtime.core import Decision, MemoryConfig, Outcome, Phase, Request
from runtime.engine.base import CausalModel, Logits
from runtime.live import LiveModels, open_session
from runtime.profile import CostModel, Curve, DraftCost, Profile
from runtime.session import DecodeSession
from runtime.zoo import Zoo

KV_RESERVE_TOKENS = 1024

STREAMS_PER_SESSION = 3
WORKLOAD = WorkloadConfig(requests=6, min_topic_requests=2, max_topic_requests=5, follow_up=0.8)
CONTROL_EVERY = 25
"""One request in so many is decoded plain twice."""

Tokens = tuple[int, ...]
Report = Callable[[int], None]


@dataclass(frozen=True)
class Pressure:
    """How little memory there is; drawn anew for every session.

    Attributes:
        drafts: Choices of how many of the largest draft fit.
        kv_tokens: Fewest and most tokens of the target's KV that fit beside them.
        disk_tokens: Choices of how many tokens' KV fits on disk.
        wait: Chance that a round stalls for a draft that is not resident.
    """

    drafts: tuple[int, ...] = (1, 2, 4)
    kv_tokens: tuple[int, int] = (500, 2000)
    disk_tokens: tuple[int, ...] = (0, 1000, 4000)
    wait: float = 0.01


PRESSURE = Pressure()


class Plain(NamedTuple):
    """The target's own greedy text, and the logits between its two best tokens at every position."""

    tokens: Tokens
    gaps: tuple[float, ...]


class ForwardTimer:
    """Times the forwards of a target from outside.

    Args:
        target: From here on its ``forward`` is timed.
    """

    def __init__(self, target: CausalModel) -> None:
        self.seconds: list[float] = []
        self._forward = target.forward
        self._synchronize = target.synchronize
        setattr(target, "forward", self._timed)  # noqa: B010 (an assignment would replace a method)

    def _timed(self, tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        started_s = time.perf_counter()
        rows = self._forward(tokens, logits)
        self._synchronize()
        self.seconds.append(time.perf_counter() - started_s)
        return rows


def nominal_costs(zoo: Zoo) -> CostModel:
    """Rough made-up costs: here they only choose what is evicted first."""
    flat, rising, copying = (Curve((0.0, 1000.0), seconds) for seconds in ((0.07, 0.07), (0.0, 2.0), (0.0, 0.02)))
    draft, none = Curve((1.0, 101.0), (0.005, 0.05)), Curve((1.0, 101.0), (0.0001, 0.0001))
    profile = Profile(
        device="nominal",
        engine="none",
        dtype="float32",
        threads=1,
        target=zoo.target.fingerprint,
        reference_context=200,
        forward=Curve((1.0, 9.0), (0.07, 0.09)),
        decode=flat,
        prefill=rising,
        drafts={
            d.name: DraftCost(draft if d.file else none, 0.1 if d.file else 0.0, d.bytes, d.kv_bytes_per_token)
            for d in zoo.drafts
        },
        kv_store=copying,
        kv_restore=copying,
        kv_bytes_per_token=zoo.target.kv_bytes_per_token,
        simulated=True,
    )
    return CostModel(profile, zoo.draft_names)


@torch.inference_mode()
def plain_text(target: CausalModel, request: Request) -> Plain:
    """Plain decoding: the whole prompt, then one token a forward. The target's sequence is overwritten."""
    target.reset()
    tokens: list[int] = []
    gaps: list[float] = []
    inputs: Sequence[int] = request.prompt_ids
    while len(tokens) < request.max_new_tokens and not (tokens and tokens[-1] in request.eos_ids):
        row = target.forward(inputs, "last")[0]  # (vocab,)
        best, second = row.topk(2).values.tolist()
        tokens.append(int(row.argmax()))
        gaps.append(best - second)
        inputs = tokens[-1:]
    target.reset()
    return Plain(tuple(tokens), tuple(gaps))


def first_difference(expected: Tokens, got: Tokens) -> int | None:
    """Index of the first token that differs, or where the shorter one ends; None if they are the same."""
    if expected == got:
        return None
    pairs = enumerate(zip(expected, got, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(expected), len(got)))


def random_streams(sets: Sequence[tuple[str, TraceSet]], seed: int) -> Iterator[Stream]:
    """Endless streams of all splits in turn, their answers cut at random: some to 1, 2 or 3 tokens."""
    rng = random.Random(seed)
    workloads = [Workload(traces, split, WORKLOAD) for split, traces in sets]
    for series in count():
        covering = [workload.covering(seed + 7919 * series, 50) for workload in workloads]
        for turn in zip(*covering, strict=True):
            for stream in turn:
                yield tuple(_cut(item, rng) for item in stream)


def _cut(item: Item, rng: random.Random) -> Item:
    length, chance = len(item.trace.output_ids), rng.random()
    if chance >= 0.4:
        return item
    wanted = rng.choice((1, 2, 3)) if chance < 0.2 else rng.randint(1, length)
    return item._replace(request=dataclasses.replace(item.request, max_new_tokens=min(wanted, length)))


def serve(
    session: DecodeSession, controller: Controller, requests: Sequence[Request], timer: ForwardTimer, tally: Tally
) -> list[Tokens]:
    """Serve one stream; returns the text of every request."""
    texts: list[list[int]] = [[] for _ in requests]
    index, last, finished = 0, None, not session.start(requests)
    controller.begin_stream()
    while not finished:
        decision = controller.decide(session.observe())
        timer.seconds.clear()
        controller.learn(outcome := session.advance(decision))
        _count(outcome, decision, last, timer.seconds, tally)
        last = outcome.decision.draft if outcome.phase is Phase.DECODE else None
        texts[index].extend(outcome.tokens)
        index += outcome.request_finished
        finished = outcome.stream_finished
    tally.streams += 1
    return [tuple(text) for text in texts]


def _count(outcome: Outcome, decision: Decision, last: int | None, forwards: list[float], tally: Tally) -> None:
    """The first forward of a step is its verification or prefill; all others are there because of the guard."""
    tally.serving_s += outcome.seconds
    tally.guard_s += sum(forwards[1:])
    if outcome.phase is Phase.ADMIT:
        tally.guard_forwards += len(forwards) - 1
        tally.reused_requests += outcome.reused_tokens > 0
    elif outcome.round is not None:
        draft = outcome.decision.draft
        tally.guard_forwards += outcome.round.guard_forwards
        tally.waits += decision.wait
        tally.swaps += None not in (draft, last) and draft != last


class Checker:
    """Compares texts with the target's own.

    Args:
        target: The target; its sequence is overwritten.
        traced: Whether the recorded texts are the reference; else plain decoding is, for every request.
        tally: Gets what is found.
    """

    def __init__(self, target: CausalModel, traced: bool, tally: Tally) -> None:
        self._target, self._traced, self._tally = target, traced, tally
        self._known: dict[tuple[str, int], Plain] = {}

    def check(self, item: Item, got: Tokens) -> None:
        """Compare the text of one request; every so often decode it plain twice as well."""
        tally, request = self._tally, item.request
        recorded = item.trace.output_ids[: request.max_new_tokens]
        tally.requests += 1
        if tally.requests % CONTROL_EVERY == 1:
            self._control(request, recorded)
        if self._traced and got == recorded:
            tally.tokens += len(got)
            return
        plain = self._plain(request)
        if self._traced:
            self._compare("trace", request, recorded, plain.tokens, plain)
        at = self._compare("draft", request, plain.tokens, got, plain)
        tally.tokens += len(got) if at is None else at

    def _control(self, request: Request, recorded: Tokens) -> None:
        first, second = self._decode(request), self._decode(request)
        self._known[request.request_id, request.max_new_tokens] = first
        self._tally.controls += 1
        self._compare("repeat", request, first.tokens, second.tokens, first)
        if self._traced:
            self._compare("trace", request, recorded, first.tokens, first)

    def _plain(self, request: Request) -> Plain:
        key = (request.request_id, request.max_new_tokens)
        if key not in self._known:
            self._known[key] = self._decode(request)
        return self._known[key]

    def _decode(self, request: Request) -> Plain:
        started_s = time.perf_counter()
        plain = plain_text(self._target, request)
        self._tally.reference_s += time.perf_counter() - started_s
        return plain

    def _compare(self, kind: str, request: Request, expected: Tokens, got: Tokens, plain: Plain) -> int | None:
        at = first_difference(expected, got)
        if at is not None:
            a, b = (text[at] if at < len(text) else -1 for text in (expected, got))
            gap = plain.gaps[at] if at < len(plain.gaps) else float("nan")
            found = Difference(request.request_id, kind, at, a, b, gap, len(request.prompt_ids))
            if found not in self._tally.differences:
                self._tally.differences.append(found)
        return at


def budget_of(models: LiveModels, drafts: int, kv_tokens: int) -> MemoryConfig:
    """Room for so many of the largest draft and the KV of so many tokens, beside what cannot be given up."""
    per_token = models.target.kv_bytes_per_token
    return models.zoo.memory(KV_RESERVE_TOKENS, drafts, kv_tokens, kv_bytes_per_token=per_token)


def random_memory(models: LiveModels, pressure: Pressure, rng: random.Random) -> MemoryConfig:
    """A budget that forces evictions."""
    memory = budget_of(models, rng.choice(pressure.drafts), rng.randint(*pressure.kv_tokens))
    return dataclasses.replace(memory, disk_bytes=rng.choice(pressure.disk_tokens) * memory.kv_bytes_per_token)


def run(
    models: LiveModels,
    sets: Sequence[tuple[str, TraceSet]],
    tokens: int,
    seed: int,
    margin: float | None,
    traced: bool,
    report: Report,
    pressure: Pressure = PRESSURE,
) -> Tally:
    """Serve streams until so many tokens are compared.

    Args:
        models: Target and zoo.
        sets: Traces by split.
        tokens: Tokens to compare, at least.
        seed: Of streams, budgets and decisions. Loads take real time, so a run does not repeat exactly.
        margin: Of the guard; 0 = no guard, None = by dtype.
        traced: Whether the recorded texts are the reference.
        report: Gets the number of tokens compared so far.
        pressure: How little memory there is.
    """
    tally, rng, costs = Tally(), random.Random(seed), nominal_costs(models.zoo)
    timer, streams = ForwardTimer(models.target), random_streams(sets, seed)
    checker = Checker(models.target, traced, tally)
    with ExitStack() as cleanup:
        kv_folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="specpilot-")))  # of all sessions
        while tally.tokens < tokens:
            memory, interval = random_memory(models, pressure, rng), rng.choice((1, 2, 4))
            with open_session(models, memory, costs, KV_RESERVE_TOKENS, interval, margin, kv_folder) as session:
                controller = RandomController(session.drafts, rng.getrandbits(32), wait=pressure.wait)
                for stream in (next(streams) for _ in range(STREAMS_PER_SESSION)):
                    texts = serve(session, controller, [item.request for item in stream], timer, tally)
                    for item, text in zip(stream, texts, strict=True):
                        checker.check(item, text)
                    report(tally.tokens)
                    if tally.tokens >= tokens:
                        break
                tally.close_session(session.counters)
    return tally
