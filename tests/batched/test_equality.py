"""The batched replay does what single environments over the shared session do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs.replay.decoder
from envs.base import Episode, SpecEnv
from envs.batched.dealer import Dealer
from envs.traces import TraceSet
from envs.workload import WorkloadConfig
from envs.world import ReplayWorld, WorldConfig
from runtime.control.topic import TopicPredictor
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.profile import CostModel
from runtime.zoo import Zoo
from tests.batched.twins import Twins
from tests.batched.worlds import Shape, make, profile

SHAPES = st.builds(
    Shape,
    budget=st.sampled_from([-50, 400, 1100, 1700, 2600, 3400, 6000]),
    load_s=st.sampled_from([0.0, 0.05, 0.4, 3.0]),
    slowdown=st.sampled_from([1.0, 1.3, 4.0]),
    interval=st.integers(1, 6),
    max_steps=st.sampled_from([0, 0, 37]),
    requests=st.integers(1, 7),
    short_share=st.sampled_from([0.0, 0.4]),
    follow_up=st.sampled_from([0.0, 0.7, 1.0]),
    topic=st.booleans(),
    context_limit=st.sampled_from([60, 8192]),
)


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(0, 2**20), st.sampled_from([0.0, 0.1, 0.6]))
def test_every_step_is_that_of_a_single_environment(shape: Shape, seed: int, illegal: float) -> None:
    twins = Twins([make(shape)], 2, seed)
    rng = np.random.default_rng(seed)
    while twins.ended.min() < 2 and twins.steps < 500:
        twins.step(twins.action(rng, illegal))
    assert twins.ended.min() >= 1


def test_what_happens_in_these_worlds_covers_the_rules() -> None:
    """Else the test above would say little."""
    twins = Twins([make(Shape())], 4, 3)
    rng = np.random.default_rng(3)
    while twins.ended.min() < 6:
        twins.step(twins.action(rng, 0.05))
    done = twins.batched.since_last_asked()
    for name in ("accepted", "loads", "wasted_loads", "evictions", "kv_hit_tokens", "kv_retained_bytes", "illegal"):
        assert done[name] > 0, name
    assert done["drafted"] > done["accepted"]


def test_the_look_up_forgets_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generations, the older forgotten between requests."""
    memory = 260
    monkeypatch.setattr(envs.replay.decoder, "LookupDrafter", partial(LookupDrafter, memory_tokens=memory))
    twins = Twins([make(Shape(requests=12))], 2, 11)
    twins.batched.tables = twins.batched.tables._replace(memory=np.array([memory // 2]))
    rng = np.random.default_rng(11)
    while twins.ended.min() < 3:
        twins.step(twins.action(rng, 0.0))


def test_worlds_are_drawn_by_episode() -> None:
    worlds = [make(Shape()), make(Shape(budget=1200, load_s=2.0, slowdown=2.0)), make(Shape(budget=4000, interval=2))]

    def episode(rng: np.random.Generator) -> Episode:
        return worlds[rng.integers(len(worlds))].episode(rng)

    twins = Twins(worlds, 3, 5, [SpecEnv(episode, len(worlds[0].drafts)) for _ in range(3)])
    rng = np.random.default_rng(5)
    drawn = set()
    while twins.ended.min() < 4:
        drawn |= set(twins.batched.streams.whole[:, 0].tolist())
        twins.step(twins.action(rng, 0.1))
    assert drawn == {0, 1, 2}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), SHAPES)
def test_a_dealer_deals_the_workloads_streams(seed: int, index: int, shape: Shape) -> None:
    world = make(shape)
    plan = Dealer(world.generator, world.bank).stream(seed, index)
    stream = world.generator.stream(seed, index)
    names = [world.generator.traces[text].prompt_id for text in plan[:, 0]]
    assert names == [item.request.request_id for item in stream]
    assert plan[:, 1].tolist() == [item.request.max_new_tokens for item in stream]
    assert plan[:, 2].tolist() == [min(i.request.max_new_tokens, len(i.trace.output_ids)) for i in stream]


@pytest.mark.slow
@pytest.mark.parametrize(("largest", "kv_tokens"), [(2, 1500), (1, 300)])
def test_the_default_zoo_is_replayed_alike(largest: int, kv_tokens: int) -> None:
    folder = Path(__file__).resolve().parents[2] / "envs" / "zoo" / "smollm2"
    zoo = Zoo.load(folder)
    traces = TraceSet.load(next((folder / "traces").glob("*heldout*")), zoo.target.fingerprint)
    world = ReplayWorld(
        traces,
        zoo.specs(1024),
        CostModel(profile(names=zoo.draft_names), zoo.draft_names),
        TopicPredictor.load(folder / zoo.topic, zoo.draft_names),
        WorldConfig(zoo.memory(1024, largest, kv_tokens, 0)),
        WorkloadConfig(short_share=0.2),
        traces.traces[0].split,
    )
    twins = Twins([world], 24, 100)
    rng = np.random.default_rng(0)
    while not twins.ended.all():
        twins.step(twins.action(rng, 0.02))
