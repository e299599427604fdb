"""Observation and mask, written to be fast, against the same written plainly: bit by bit, over random states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.control.action import ActionCodec
from runtime.control.topic import TopicPredictor
from runtime.core import DraftSpec, MemoryConfig, Phase, Request
from runtime.curve_reader import CurveReader
from runtime.legality import legal_mask
from runtime.memory.kv_store import Match
from runtime.memory.manager import MemoryManager, Residency
from runtime.observer import Observer
from runtime.profile import CostModel, Curve
from runtime.session import DecodeSession
from runtime.state import Evidence, State
from tests.batched.worlds import NAMES, Shape, make, profile
from tests.factories import HandLoader
from tests.session.reference_mask import reference_mask
from tests.session.reference_observer import ReferenceObserver

SPECS = tuple(
    DraftSpec(name, size, name != "lookup", limit, expected=0.2 * (i + 1))
    for i, (name, size, limit) in enumerate(zip(NAMES, (1000, 64, 1300, 700), (8192, 8192, 60, 200), strict=True))
)
COSTS = CostModel(profile(load_s=40.0), NAMES)  # some loads are beyond the feature's range
RNG = np.random.default_rng(4)
TOPIC = TopicPredictor(
    RNG.normal(0.3, 0.8, (50, 4)).astype(np.float32),
    RNG.normal(0.0, 0.3, 4).astype(np.float32),
    5,
    NAMES,
    RNG.normal(0.0, 0.3, (50, 4)).clip(-1.0, 1.0).astype(np.float32),
)


class FakeDecoder:
    """A decoder somewhere in a text."""

    def __init__(self, rng: np.random.Generator, tokens: Sequence[int], context: int) -> None:
        self.behind = rng.integers(0, max(1, context), len(NAMES)).tolist()
        self.guesses, self.confidence, self.tokens = rng.random(len(NAMES)).astype(np.float32), rng.random(), tokens

    def catch_up_tokens(self, draft: int) -> int:
        return 0 if draft == NAMES.index("lookup") else int(self.behind[draft])

    def predicted(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return self.guesses

    def last_token(self) -> int:
        return self.tokens[-1]

    def lookup_confidence(self, draft: int) -> float:
        return float(self.confidence)

    def stored_tokens(self) -> tuple[int, ...]:
        return tuple(self.tokens)


def made_memory(rng: np.random.Generator, budget: int) -> MemoryManager:
    """Drafts anywhere, some that failed; a part of the budget set aside; KV in memory, some of it held."""
    memory = MemoryManager(MemoryConfig(budget, 100, 10), SPECS, HandLoader(), COSTS)
    for state, spec in zip(memory.states, SPECS, strict=True):
        if spec.loadable:
            state.residency = Residency(int(rng.integers(3)))
            state.failed = "gone" if state.residency is Residency.STORED and rng.random() < 0.2 else None
            memory._draft_bytes += spec.bytes * (state.residency is not Residency.STORED)
    memory.aside_bytes = int(rng.integers(0, budget) if rng.random() < 0.3 else 0)
    if rng.random() < 0.5:
        nodes = memory.kv.insert(tuple(range(64)), [object(), object()], 0.0)
        if rng.random() < 0.3:
            memory.kv.hold(nodes[int(rng.integers(2))])
    return memory


def made_state(rng: np.random.Generator, phase: Phase, prompt: int, room: int) -> State:
    state = State(int(rng.integers(1, 6)), phase, since_decision=int(rng.integers(0, 90)))
    state.match = Match((), int(rng.integers(0, prompt)) * int(rng.integers(2)), int(rng.integers(0, 2)) * 3)
    state.generated = 0 if phase is Phase.ADMIT else int(rng.choice([1, 2, 3, 30]))
    state.last_drafted, state.last_accepted = 4, int(rng.integers(5))
    if rng.random() < 0.95:
        tokens = tuple(rng.integers(0, 50, prompt).tolist())
        state.request = Request("r", tokens, state.generated + room)
    return state


@settings(deadline=None, max_examples=300)
@given(
    st.integers(0, 2**31),
    st.sampled_from(Phase),
    st.sampled_from([1, 20, 50, 190, 9000]),
    st.sampled_from([1, 2, 5, 9, 10, 5000]),
    st.sampled_from([200, 1500, 3500, 9000]),
    st.booleans(),
)
def test_every_observation_and_mask_is_that_of_the_plain_way(
    seed: int, phase: Phase, prompt: int, room: int, budget: int, topic: bool
) -> None:
    rng = np.random.default_rng(seed)
    memory, state, predictor = made_memory(rng, budget), made_state(rng, phase, prompt, room), TOPIC if topic else None
    decoder = FakeDecoder(rng, rng.integers(0, 50, max(1, state.context)).tolist(), state.context)
    evidence, committed = Evidence(SPECS), int(rng.integers(0, 9000))
    evidence.acceptance[:], evidence.hit_share = rng.random(4), float(rng.random())
    evidence.seen_at[:] = rng.integers(0, committed + 1, 4)
    observer = Observer(memory, decoder, COSTS, predictor)  # type: ignore[arg-type]
    reference = ReferenceObserver(memory, decoder, COSTS, predictor)  # type: ignore[arg-type]
    wanted, seen = reference.vector(state, evidence, committed), evidence.confidence.copy()
    got = observer.vector(state, evidence, committed)
    assert got.dtype == np.float32
    assert got.tobytes() == wanted.tobytes(), np.flatnonzero(got != wanted)
    assert np.array_equal(evidence.confidence, seen)
    codec = ActionCodec(len(NAMES))
    mask = legal_mask(state, memory, decoder, codec)  # type: ignore[arg-type]
    assert mask.dtype == np.bool_
    assert np.array_equal(mask, reference_mask(state, memory, decoder, codec))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_so_is_every_one_of_a_replayed_stream(seed: int) -> None:
    world, rng = make(Shape()), np.random.default_rng(seed)
    session: DecodeSession = world.session()
    reference = ReferenceObserver(session.memory, session.decoder, session.costs, session.topic)
    session.start(item.request for item in world.generator.stream(0, seed))
    finished = False
    while not finished:
        seen = session.observe()
        wanted = reference.vector(session._state, session._evidence, session.counters.committed)
        assert seen.vector.tobytes() == wanted.tobytes()
        mask = reference_mask(session._state, session.memory, session.decoder, session.codec)
        assert np.array_equal(seen.mask, mask)
        parts = [rng.choice(np.flatnonzero(part)) for part in session.codec.split_mask(seen.mask)]
        finished = session.advance(session.codec.decode(parts)).stream_finished


def test_an_observation_is_the_callers_own() -> None:
    session = make(Shape()).session()
    first = session.observe()
    kept, legal = first.vector.copy(), first.mask.copy()
    again = session.observe()
    again.vector[:] = 9.0
    again.mask[:] = False
    assert np.array_equal(first.vector, kept) and np.array_equal(first.mask, legal)
    assert np.array_equal(session.observe().vector, kept)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0.0, 2.0)), min_size=1, max_size=6),
    st.lists(st.integers(0, 400), min_size=1, max_size=30),
)
def test_a_curve_reader_reads_what_the_curve_says(points: list[tuple[int, float]], places: list[int]) -> None:
    xs = np.cumsum([step for step, _ in points]).tolist()
    curve = Curve(tuple(map(float, xs)), tuple(seconds for _, seconds in points))
    reader = CurveReader(curve)
    places += [x + beside for x in xs for beside in (-1, 0, 1, 0)]  # where pieces meet, from both sides
    assert [reader.at(x) for x in places] == [curve.at(x) for x in places]
