"""The residual policy starts at its prior; the exported graph answers as the library does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.export import export_policy
from agents.foresight import Reach
from agents.ppo import Learner, build_learner, predict
from agents.round_table import GuessRow, RoundTable, build_round_table, reach_statistics
from agents.settings import AgentSettings
from runtime.control.action import ActionCodec, BoolMask
from runtime.control.frozen import FrozenController
from runtime.control.observation import Observation, bounds
from runtime.core import GAMMAS, STOP_LEVELS, Phase
from runtime.errors import UserError
from tests.factories import NAMES

N = len(NAMES)
CODEC = ActionCodec(N)


class RandomEnv(gym.Env[Any, Any]):
    """Random observations and masks; the reward is nothing. Only the spaces matter here."""

    def __init__(self) -> None:
        low, high = bounds(N)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gym.spaces.MultiDiscrete(list(CODEC.nvec))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return random_observation(self.np_random).vector, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return random_observation(self.np_random).vector, 0.0, False, False, {}

    def action_masks(self) -> BoolMask:
        return random_observation(self.np_random).mask


def random_observation(rng: np.random.Generator) -> Observation:
    low, high = bounds(N)
    vector = rng.uniform(low, np.minimum(high, 50.0)).astype(np.float32)
    mask = rng.random(CODEC.offsets[-1]) < 0.5
    mask[list(CODEC.offsets[:-1])] = True
    return Observation(Phase.DECODE, vector, mask)


def made_up_reach(rng: np.random.Generator) -> Reach:
    sent = rng.integers(1, 9, (len(STOP_LEVELS), 200))
    return Reach(rng.integers(0, 9, 200), sent.max(axis=0), sent, 0.0, 0.0)


def make_table(seed: int = 0) -> RoundTable:
    rng = np.random.default_rng(seed)
    rows = [
        GuessRow(
            draft,
            rng.random(200) < 0.3 + 0.2 * draft,
            made_up_reach(rng),
            rng.random(200).astype(np.float32),
            rng.uniform(-0.3, 0.3, 200).astype(np.float32),
        )
        for draft in range(N)
    ]
    return build_round_table(NAMES, (0.5,) * N, rows)


def make_settings(algorithm: str = "maskable_ppo", residual: bool = True) -> AgentSettings:
    return AgentSettings(
        algorithm, residual, 64, 1e-3, 16, 16, 1, 0.99, 0.9, 0.0, 0.2, None, (16, 16), 12.0, 0.65, 32, 1
    )


def make_learner(algorithm: str = "maskable_ppo", residual: bool = True) -> Learner:
    return build_learner(make_settings(algorithm, residual), DummyVecEnv([RandomEnv]), make_table(), None, 0)


@pytest.mark.parametrize("algorithm", ["maskable_ppo", "ppo"])
def test_untrained_policy_equals_its_prior(algorithm: str) -> None:
    learner = make_learner(algorithm)
    rng = np.random.default_rng(1)
    for _ in range(50):
        observation = random_observation(rng)
        extractor: Any = learner.policy.features_extractor
        scores = extractor.prior(torch.as_tensor(observation.vector[None]))[0]
        if algorithm == "maskable_ppo":
            scores = torch.where(torch.as_tensor(observation.mask), scores, torch.tensor(-1e8))
        expected = [
            int(scores[start:end].argmax()) for start, end in zip(CODEC.offsets, CODEC.offsets[1:], strict=False)
        ]
        assert predict(learner, observation).tolist() == expected


@pytest.mark.parametrize("residual", [True, False])
def test_exported_graph_equals_the_library_on_trained_weights(tmp_path: Path, residual: bool) -> None:
    """Post-processing outside the graph made exports differ elsewhere (stable-baselines3 #1211)."""
    learner = make_learner(residual=residual)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    path = tmp_path / "policy.onnx"
    export_policy(learner.policy, CODEC, len(bounds(N)[0]), path)
    frozen = FrozenController(path, N, len(bounds(N)[0]))
    rng = np.random.default_rng(2)
    for _ in range(1000):
        observation = random_observation(rng)
        action = CODEC.encode(frozen.decide(observation))
        learned = CODEC.encode(CODEC.decode(predict(learner, observation)))
        assert np.array_equal(action, learned)
        assert all(observation.mask[start + value] for start, value in zip(CODEC.offsets, action, strict=False))


def test_learning_changes_the_policy_and_is_deterministic() -> None:
    weights = []
    for _ in range(2):
        learner = make_learner()
        learner.learn(64)
        head: Any = learner.policy.action_net
        weights.append(head.correction.bias.detach().clone())
    assert torch.equal(weights[0], weights[1])


def test_policy_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    export_policy(make_learner().policy, CODEC, len(bounds(N)[0]), path)
    with pytest.raises(UserError, match="use the bundle made for them"):
        FrozenController(path, N + 1, len(bounds(N + 1)[0]))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="not a readable policy"):
        FrozenController(path, N, len(bounds(N)[0]))


def test_statistics_are_those_of_a_round_played_by_hand() -> None:
    sent = np.array([[8, 8], [3, 1], [2, 1], [1, 1]])  # by stop level, from two positions
    statistics = reach_statistics(Reach(np.array([2, 0]), sent.max(axis=0), sent, 0.0, 0.0))
    gamma_4 = GAMMAS.index(4)
    assert statistics[0, gamma_4, 0].tolist() == [2.0, 4.0, 4.0]  # accepted, verified, computed
    assert statistics[0, gamma_4, 1].tolist() == [2.0, 3.0, 3.0]
    assert statistics[0, gamma_4, 3].tolist() == [1.0, 1.0, 1.0]
    assert statistics[1, gamma_4, 0].tolist() == [0.0, 4.0, 4.0]
    assert statistics[1, 0, 1].tolist() == [0.0, 1.0, 1.0]
