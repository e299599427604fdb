"""Worlds in which everything happens: conversations, documents, look-ups, loads that wait, KV that has to go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from envs.trace_code import encode
from envs.traces import RUN_ON, DraftRef, DraftTrace, Trace, TraceSet
from envs.workload import WorkloadConfig
from envs.world import ReplayWorld, WorldConfig
from runtime.control.topic import TopicPredictor
from runtime.core import DraftSpec, MemoryConfig
from runtime.profile import CostModel, Curve, DraftCost, Profile
from tests.factories import make_profile

NAMES = ("one", "lookup", "two", "three")
SIZES = (1000, 64, 1300, 700)
WORDS, END = 7, 0


@dataclass(frozen=True)
class Shape:
    """What a world is like; ``budget`` is beyond what always lies in memory."""

    budget: int = 2600
    load_s: float = 0.3
    slowdown: float = 1.3
    interval: int = 4
    max_steps: int = 0
    requests: int = 5
    short_share: float = 0.3
    follow_up: float = 0.7
    topic: bool = True
    context_limit: int = 8192


def make(shape: Shape) -> ReplayWorld:
    """A world over the same texts for every shape."""
    return ReplayWorld(
        traces(),
        specs(shape.context_limit),
        CostModel(profile(shape.load_s, shape.slowdown), NAMES),
        topic() if shape.topic else None,
        WorldConfig(MemoryConfig(shape.budget + 164, 100, 10), shape.interval, shape.max_steps),
        WorkloadConfig(
            requests=shape.requests, follow_up=shape.follow_up, short_share=shape.short_share, short_tokens=9
        ),
        "train",
    )


@cache
def specs(context_limit: int) -> tuple[DraftSpec, ...]:
    """Three drafts and a look-up between them."""
    return tuple(
        DraftSpec(
            name, size, name != "lookup", context_limit if name == "two" else 8192, (0.8 + i / 9, 0.1 * i), 0.3 + i / 10
        )
        for i, (name, size) in enumerate(zip(NAMES, SIZES, strict=True))
    )


def profile(load_s: float = 0.3, slowdown: float = 1.3, names: tuple[str, ...] = NAMES) -> Profile:
    """Costs without round numbers, so that the order of sums shows."""
    costs = {
        name: DraftCost(Curve((1.0, 7.0, 90.0), (0.0107 + i / 999, 0.0171, 0.1193)), load_s * (1 + i / 7), 1000, 2)
        for i, name in enumerate(names)
    }
    return replace(
        make_profile(),
        drafts=costs,
        forward=Curve((1.0, 2.0, 5.0, 9.0), (0.1001, 0.1097, 0.1213, 0.1791)),
        decode=Curve((10.0, 60.0, 300.0), (0.0987, 0.1019, 0.1313)),
        prefill=Curve((1.0, 33.0, 70.0, 200.0), (0.0513, 0.0717, 0.1311, 0.4077)),
        kv_store=Curve((32.0, 96.0), (0.0023, 0.0071)),
        kv_restore=Curve((32.0, 96.0), (0.0019, 0.0067)),
        round_overhead_s=0.0011,
        decode_slowdown=slowdown,
        load_slowdown=1.0 + (slowdown - 1.0) / 3,
    )


@cache
def topic() -> TopicPredictor:
    """Random scores."""
    rng = np.random.default_rng(2)
    scores, shift = (rng.normal(0.3, 0.5, (400, len(NAMES))).astype(np.float32) for _ in range(2))
    return TopicPredictor(scores, np.full(len(NAMES), 0.1, dtype=np.float32), 6, NAMES, shift)


@cache
def traces() -> TraceSet:
    """Two domains of single prompts, documents and conversations of few words."""
    rng = np.random.default_rng(1)
    made = [trace for domain in ("code", "story") for trace in _domain(rng, domain)]
    refs = tuple(DraftRef(name, "") for name in NAMES if name != "lookup")
    return TraceSet("fingerprint", refs, frozenset({END}), tuple(made))


def _domain(rng: np.random.Generator, domain: str) -> Iterator[Trace]:
    for number in range(5):
        yield _trace(rng, domain, "single", f"{domain}-s{number}", 0, _words(rng, 3, 50))
    for number in range(3):
        document = _words(rng, 40, 70)
        for turn in range(3):
            yield _trace(rng, domain, "rag", f"{domain}-r{number}", turn, document + _words(rng, 2, 9))
        text: tuple[int, ...] = _words(rng, 4, 40)
        for turn in range(3):
            trace = _trace(rng, domain, "chat", f"{domain}-c{number}", turn, text)
            yield trace
            text = (*trace.prompt_ids, *trace.output_ids, *_words(rng, 2, 20))


def _words(rng: np.random.Generator, fewest: int, most: int) -> tuple[int, ...]:
    return tuple(rng.integers(1, WORDS, rng.integers(fewest, most)).tolist())


def _trace(rng: np.random.Generator, domain: str, kind: str, group: str, turn: int, prompt: tuple[int, ...]) -> Trace:
    output = _words(rng, 2, 45)
    if rng.random() < 0.5:
        output = (*output, END)
    prompt = (*prompt, 100 + int(rng.integers(300)))  # every prompt is another
    drafts = tuple(_draft(rng, len(output), acceptance) for acceptance in (0.8, 0.55, 0.3))
    return Trace(f"{group}-{turn}", domain, "train", kind, group, turn, prompt, output, drafts)


def _draft(rng: np.random.Generator, length: int, acceptance: float) -> DraftTrace:
    match = rng.random(length) < acceptance
    runs = np.where(match, 0, np.where(rng.random(length) < 0.2, rng.integers(0, RUN_ON, length), RUN_ON))
    start = np.concatenate([[0], runs.cumsum()]).astype(np.int32)
    confidence = np.where(match, rng.beta(6, 2, length), rng.beta(2, 3, length))
    return DraftTrace(match, encode(confidence), encode(rng.beta(3, 2, int(start[-1]))), start)
