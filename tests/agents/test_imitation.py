"""Warm start: a policy that imitates a controller, or takes another run's weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

import agents.warm_start
from agents.export import export_policy
from agents.heuristic import HeuristicController
from agents.imitation import agreement, demonstrate, imitate_teacher
from agents.oracle_teacher import OracleTeacher
from agents.ppo import build_learner
from agents.round_table import RoundTable
from agents.serving import serve
from agents.warm_start import load_weights, read_weights, warm_start
from envs.world import ReplayWorld
from runtime.control.action import ActionCodec
from runtime.control.observation import bounds
from runtime.control.static import plain_controller
from runtime.errors import UserError
from tests.agents.test_policy import CODEC, N, disturb, make_learner, make_settings, make_table
from tests.factories import make_world


@pytest.fixture(scope="module")
def world() -> ReplayWorld:
    return make_world()


def learner_of(world: ReplayWorld, table: RoundTable, **changes: Any) -> Any:
    return build_learner(make_settings(**changes), DummyVecEnv([world.env]), table, 0)


def test_a_plain_network_learns_to_decide_as_a_heuristic(world: ReplayWorld) -> None:
    table = make_table()
    learner = learner_of(world, table, residual=False, widths=(64, 64))
    heuristic = HeuristicController(table, token_price=0.65)
    shown = demonstrate(lambda stream: heuristic, world.session, CODEC, world.streams(3, 3))
    before = agreement(learner.policy, shown)
    share = imitate_teacher(learner.policy, lambda stream: heuristic, world, streams=12, epochs=20, seed=0)
    assert before < 0.8
    assert share > 0.95
    assert agreement(learner.policy, shown) > 0.95


def test_the_residual_policy_agrees_before_it_learns(world: ReplayWorld) -> None:
    table = make_table()
    learner = learner_of(world, table)
    heuristic = HeuristicController(table, token_price=0.65)
    shown = demonstrate(lambda stream: heuristic, world.session, CODEC, world.streams(3, 3))
    assert agreement(learner.policy, shown) == 1.0
    assert shown.masks[np.arange(len(shown.actions))[:, None], shown.actions + CODEC.offsets[:-1]].all()


def test_the_playing_oracle_is_faster_than_who_does_not_know(world: ReplayWorld) -> None:
    streams = world.streams(5, 4)

    def seconds(teacher: Any) -> float:
        return sum(serve(teacher(stream), stream, world.session(), "x")[0].seconds for stream in streams)

    plain_s = seconds(lambda stream: plain_controller(N))
    heuristic_s = seconds(lambda stream: HeuristicController(make_table()))
    oracle_s = seconds(lambda stream: OracleTeacher(world, stream))
    assert oracle_s < 0.9 * plain_s
    assert oracle_s < heuristic_s


@pytest.mark.parametrize("algorithm", ["maskable_ppo", "branching_dqn"])
def test_warm_start_imitates_whom_it_is_told(
    world: ReplayWorld, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table()
    settings = make_settings(algorithm, warm_start="oracle", imitation_streams=6, imitation_epochs=4)
    learner: Any = build_learner(settings, DummyVecEnv([world.env]), table, 0)
    shown = demonstrate(lambda stream: OracleTeacher(world, stream), world.session, CODEC, world.streams(9, 3))
    before = agreement(learner.policy, shown)
    with caplog.at_level(logging.INFO):
        warm_start(learner, settings, world, table, 0, False)
    assert agreement(learner.policy, shown) > before
    assert "decides as the oracle in" in caplog.text
    if algorithm == "branching_dqn":
        own, target = learner.policy.state_dict(), learner.target.state_dict()
        assert all(torch.equal(own[name], target[name]) for name in own)


def test_weights_come_back_from_an_exported_graph(tmp_path: Path) -> None:
    for network in ("flat", "equivariant"):
        learner = make_learner(network=network, normalise="running")
        disturb(learner)
        learner.policy.features_extractor.learn_scales(np.random.default_rng(0).normal(size=(9, len(bounds(N)[0]))))
        export_policy(learner.policy, CODEC, len(bounds(N)[0]), tmp_path / "policy.onnx")
        again = make_learner(network=network, normalise="running")
        load_weights(again.policy, agents.warm_start._of_graph(tmp_path / "policy.onnx"))
        rows = torch.randn(5, len(bounds(N)[0]))
        assert torch.allclose(again.policy.scores(rows), learner.policy.scores(rows), atol=1e-5)


def test_another_normalisation_is_refused() -> None:
    running = make_learner(normalise="running")
    running.policy.features_extractor.learn_scales(np.ones((3, len(bounds(N)[0])), dtype=np.float32))
    with pytest.raises(UserError, match=r"trained with agent\.normalise=running: use that here too"):
        load_weights(make_learner().policy, running.policy.state_dict())


def test_a_place_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        read_weights(tmp_path)


def test_trimmed_policies_imitate_what_they_may_decide(world: ReplayWorld) -> None:
    table = make_table()
    learner = learner_of(world, table, residual=False, actions="drafts")
    teacher = HeuristicController(table)
    share = imitate_teacher(learner.policy, lambda stream: teacher, world, streams=4, epochs=4, seed=0)
    assert 0.0 < share <= 1.0
    assert all(torch.isfinite(value).all() for value in learner.policy.state_dict().values())
    assert ActionCodec(N).offsets == CODEC.offsets
