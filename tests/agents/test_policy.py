"""The residual policy starts at its prior; the exported graph answers as the library does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from sb3_contrib.common.maskable.distributions import MaskableMultiCategoricalDistribution
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.choices import Choices
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


def make_settings(algorithm: str = "maskable_ppo", residual: bool = True, **changes: Any) -> AgentSettings:
    settings = AgentSettings(
        algorithm, residual, 64, 1e-3, 16, 16, 1, 0.99, 0.9, 0.0, 0.2, None, (16, 16), 12.0, 0.65, 32, 1
    )
    return dataclasses.replace(settings, **{"learning_starts": 16, "lstm_size": 8, **changes})


def make_learner(algorithm: str = "maskable_ppo", residual: bool = True, **changes: Any) -> Any:
    """A ``Learner``; what tests look into differs by algorithm."""
    settings = make_settings(algorithm, residual, **changes)
    return build_learner(settings, DummyVecEnv([RandomEnv]), make_table(), 0)


def disturb(learner: Learner, seed: int = 0) -> None:
    """Weights as training might leave them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


COMBINATIONS = [
    ("maskable_ppo", "flat"), ("maskable_ppo", "equivariant"), ("ppo", "flat"), ("ppo", "equivariant"),
    ("recurrent_ppo", "flat"), ("branching_dqn", "flat"), ("branching_dqn", "equivariant"),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "network"), COMBINATIONS)
def test_untrained_policy_equals_its_prior(algorithm: str, network: str) -> None:
    learner = make_learner(algorithm, network=network)
    rng = np.random.default_rng(1)
    for _ in range(50):
        observation = random_observation(rng)
        extractor: Any = learner.policy.features_extractor
        scores = extractor.prior(torch.as_tensor(observation.vector[None]))[0]
        if algorithm in ("maskable_ppo", "branching_dqn"):
            scores = torch.where(torch.as_tensor(observation.mask), scores, torch.tensor(-1e8))
        expected = [
            int(scores[start:end].argmax()) for start, end in zip(CODEC.offsets, CODEC.offsets[1:], strict=False)
        ]
        assert predict(learner, observation).tolist() == expected


@pytest.mark.parametrize("actions", ["all", "drafts", "lengths"])
@pytest.mark.parametrize(("algorithm", "network", "residual"), [
    ("maskable_ppo", "flat", True), ("maskable_ppo", "flat", False), ("maskable_ppo", "equivariant", True),
    ("maskable_ppo", "equivariant", False), ("branching_dqn", "flat", True),
])  # fmt: skip
def test_exported_graph_equals_the_library_on_trained_weights(
    tmp_path: Path, algorithm: str, network: str, residual: bool, actions: str
) -> None:
    """Post-processing outside the graph made exports differ elsewhere (stable-baselines3 #1211)."""
    learner = make_learner(algorithm, residual, network=network, actions=actions, fixed_draft=NAMES[0])
    disturb(learner)
    path = tmp_path / "policy.onnx"
    export_policy(learner.policy, CODEC, len(bounds(N)[0]), path)
    frozen = FrozenController(path, N, len(bounds(N)[0]))
    rng = np.random.default_rng(2)
    for _ in range(1000 if (algorithm, network, actions) == ("maskable_ppo", "flat", "all") else 50):
        observation = random_observation(rng)
        action = CODEC.encode(frozen.decide(observation))
        learned = CODEC.encode(CODEC.decode(predict(learner, observation)))
        assert np.array_equal(action, learned)
        assert all(observation.mask[start + value] for start, value in zip(CODEC.offsets, action, strict=False))


def test_exported_graph_of_a_recurrent_policy_carries_its_memory(tmp_path: Path) -> None:
    learner = make_learner("recurrent_ppo")
    disturb(learner)
    path = tmp_path / "policy.onnx"
    export_policy(learner.policy, CODEC, len(bounds(N)[0]), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    memory = {name: np.zeros((1, 1, 8), dtype=np.float32) for name in ("hidden", "cell")}
    everything = np.ones((1, CODEC.offsets[-1]), dtype=np.bool_)
    rng, state = np.random.default_rng(3), None
    for step in range(50):
        vector = random_observation(rng).vector
        action, *after = session.run(None, {"observation": vector[None], "mask": everything, **memory})
        memory = dict(zip(memory, after, strict=True))
        learned, state = learner.predict(vector, state, np.array([step == 0]), deterministic=True)
        assert action[0].tolist() == learned.tolist()
        assert np.allclose(memory["hidden"], cast(Any, state)[0], atol=3e-4)  # it reads scores of hundreds
    assert np.abs(memory["hidden"]).max() > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_choices_are_those_of_the_library(seed: int) -> None:
    """One log-softmax for all dimensions against sb3-contrib's five distributions, on random masks."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(256, CODEC.offsets[-1], generator=generator) * 20.0
    mask = torch.rand(logits.shape, generator=generator) < 0.4
    mask[:, list(CODEC.offsets[:-1])] = True
    ours, theirs = Choices(CODEC.nvec, None), MaskableMultiCategoricalDistribution(list(CODEC.nvec))
    for each in (ours, theirs):
        each.proba_distribution(logits)
    assert torch.allclose(ours.entropy(), theirs.entropy(), atol=1e-4)
    for each in (ours, theirs):
        each.apply_masking(mask)
    assert torch.equal(ours.mode(), theirs.mode())
    assert torch.allclose(ours.entropy(), theirs.entropy(), atol=1e-4)
    drawn = ours.sample()
    assert torch.allclose(ours.log_prob(drawn), theirs.log_prob(drawn), atol=1e-3)
    assert mask.gather(1, drawn + torch.tensor(CODEC.offsets[:-1])).all()


def test_choices_are_drawn_as_likely_as_they_are() -> None:
    torch.manual_seed(0)
    choices = Choices([3, 2], None).proba_distribution(torch.tensor([[0.0, 1.0, 2.0, 5.0, 0.0]]).repeat(20_000, 1))
    choices.apply_masking(torch.tensor([[True, True, True, False, True]]).repeat(20_000, 1))
    drawn = choices.sample()
    share = torch.bincount(drawn[:, 0], minlength=3) / 20_000
    assert torch.allclose(share, torch.tensor([0.0, 1.0, 2.0]).softmax(0), atol=0.015)
    assert drawn[:, 1].all()


def test_masked_gradients_are_finite_and_none_for_what_is_masked() -> None:
    """All-masked and extreme rows made NaN elsewhere (stable-baselines3-contrib #221)."""
    logits = (torch.randn(64, CODEC.offsets[-1]) * 1e4).requires_grad_()
    mask = torch.zeros(logits.shape, dtype=torch.bool)
    mask[:, list(CODEC.offsets[:-1])] = mask[:, 1] = True
    choices = Choices(CODEC.nvec, None).proba_distribution(logits)
    choices.apply_masking(mask)
    (choices.log_prob(choices.sample()).sum() + choices.entropy().sum()).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert float(logits.grad[~mask].abs().max()) < 1e-30


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
