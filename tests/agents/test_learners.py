"""The algorithms: schedules that can be saved, features computed once, statistics inside the policy, Q-learning."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.learners.base import FromRollouts
from agents.learners.branching import BranchingDQN, MaskedReplayBuffer, value_of
from agents.ppo import build_learner, predict
from agents.schedules import Schedule
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, P, scales
from tests.agents.test_policy import (
    CODEC,
    N,
    RandomEnv,
    disturb,
    make_learner,
    make_settings,
    make_table,
    random_observation,
)


class BonusEnv(RandomEnv):
    """Random observations; prefetching the second draft pays one step, all else nothing."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._next(), float(action[2] == 2), False, False, {}

    def action_masks(self) -> Any:
        return self._mask

    def _next(self) -> Any:
        observation = random_observation(self.np_random)
        self._mask = observation.mask
        return observation.vector


def test_schedules_reach_what_they_say_and_can_be_saved() -> None:
    kinds = {kind: Schedule(kind, 2.0) for kind in ("constant", "linear", "cosine")}
    assert [kinds[kind](0.0) for kind in kinds] == [2.0, 0.0, 0.0]
    assert [kinds[kind](1.0) for kind in kinds] == [2.0, 2.0, 2.0]
    assert [kinds[kind](0.75) for kind in kinds] == pytest.approx([2.0, 1.5, 1.7071], abs=1e-4)
    assert pickle.loads(pickle.dumps(kinds)) == kinds
    with pytest.raises(ValueError, match=r"agent\.schedule: expected constant, linear, cosine, got 'steps'"):
        Schedule("steps", 1.0)


def test_rate_and_entropy_bonus_follow_the_schedule() -> None:
    learner: Any = make_learner(ent_coef=0.5, schedule="linear", total_timesteps=32)
    learner.learn(32)
    left = 1.0 - 32 / 32
    assert learner.ent_coef == 0.5 * left
    assert learner.policy.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * left)
    pickle.dumps(learner.lr_schedule)


@pytest.mark.parametrize("normalise", ["table", "running"])
def test_features_computed_once_change_nothing(normalise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for once in (True, False):
        monkeypatch.setattr(FromRollouts, "once", once)
        learner = make_learner(normalise=normalise, n_epochs=2)
        learner.learn(64)
        weights.append(learner.policy.mlp_extractor.policy_net[0].weight.detach().clone())
    start = make_learner().policy.mlp_extractor.policy_net[0].weight
    assert torch.allclose(weights[0], weights[1], atol=1e-6)
    assert not torch.allclose(weights[0], start, atol=1e-4)


def test_running_statistics_are_those_of_the_rollouts_and_shared_by_the_drafts() -> None:
    learner: Any = make_learner(normalise="running")
    extractor = learner.policy.features_extractor
    rng = np.random.default_rng(0)
    seen = [rng.normal(3.0, 2.0, (40, G + N * P)).astype(np.float32) for _ in range(3)]
    for part in seen:
        extractor.learn_scales(part)
    flat = np.concatenate(seen)
    rows = flat[:, G:].reshape(-1, P)
    assert np.allclose(extractor.mean.numpy(), [*flat[:, :G].mean(0), *rows.mean(0)], atol=1e-5)
    mixed = extractor.variance.numpy()
    assert np.allclose(mixed[:G], flat[:, :G].var(0), rtol=1e-4)
    assert np.allclose(mixed[G:], rows.var(0), rtol=0.2)  # drafts of one rollout count as one sample


def test_training_moves_statistics_and_looking_does_not() -> None:
    """Statistics lost with the model, or moved by evaluation: stable-baselines3 #468, #362."""
    learner = make_learner(normalise="running")
    before = learner.policy.state_dict()["features_extractor.mean"].clone()
    learner.learn(64)
    trained = learner.policy.state_dict()["features_extractor.mean"].clone()
    assert not torch.equal(before, trained)
    predict(learner, random_observation(np.random.default_rng(0)))
    assert torch.equal(learner.policy.state_dict()["features_extractor.mean"], trained)
    again = make_learner(normalise="running")
    again.policy.load_state_dict(learner.policy.state_dict())
    row = torch.as_tensor(random_observation(np.random.default_rng(1)).vector[None])
    assert torch.equal(again.policy.scores(row), learner.policy.scores(row))


def test_table_scales_are_the_tables() -> None:
    extractor: Any = make_learner().policy.features_extractor
    extractor.learn_scales(np.ones((4, G + N * P), dtype=np.float32))  # without effect
    row = torch.as_tensor(random_observation(np.random.default_rng(0)).vector[None])
    assert torch.equal(extractor(row)[:, : G + N * P], row / torch.as_tensor(scales(N)))


def test_q_learning_finds_what_pays() -> None:
    settings = make_settings(
        "branching_dqn", residual=False, total_timesteps=600, n_steps=4, n_epochs=4, batch_size=64, gamma=0.0,
        learning_starts=50, explore_start=1.0, learning_rate=3e-3, target_every=50, schedule="constant",
    )  # fmt: skip
    learner = build_learner(settings, DummyVecEnv([BonusEnv]), make_table(), 0)
    learner.learn(600)
    rng, right, asked = np.random.default_rng(5), 0, 0
    for _ in range(100):
        observation = random_observation(rng)
        if observation.mask[CODEC.offsets[2] + 2]:
            asked, right = asked + 1, right + int(predict(learner, observation)[2] == 2)
    assert right / asked > 0.9


def q_learner() -> BranchingDQN:
    learner = make_learner("branching_dqn")
    assert isinstance(learner, BranchingDQN)
    return learner


@torch.no_grad()
def test_the_best_legal_decision_has_the_value_of_the_state() -> None:
    learner = q_learner()
    disturb(learner)
    rng = np.random.default_rng(0)
    for _ in range(20):
        observation = random_observation(rng)
        row, mask = torch.as_tensor(observation.vector[None]), torch.as_tensor(observation.mask[None])
        best = torch.as_tensor(predict(learner, observation)[None])
        value = value_of(learner.policy, row)
        assert torch.allclose(learner.quality(row, best, mask), value, atol=1e-4)
        other = torch.zeros_like(best)  # the first value of every dimension is legal here
        assert float(learner.quality(row, other, mask)) <= float(value) + 1e-4


def test_exploration_never_leaves_what_is_legal_and_masks_stay_with_their_observation() -> None:
    learner: Any = build_learner(
        make_settings("branching_dqn", explore_start=1.0, explore_end=1.0), DummyVecEnv([BonusEnv] * 2), make_table(),
        0,
    )  # fmt: skip
    learner.learn(64)
    buffer = learner.replay_buffer
    assert isinstance(buffer, MaskedReplayBuffer)
    filled = slice(0, buffer.pos)
    masks, actions = buffer.masks[filled].reshape(-1, CODEC.offsets[-1]), buffer.actions[filled].reshape(-1, 5)
    places = actions + np.array(CODEC.offsets[:-1])
    assert np.take_along_axis(masks, places, axis=1).all()
    assert not masks.all()


def test_the_target_network_waits() -> None:
    learner = build_learner(
        make_settings("branching_dqn", target_every=10_000), DummyVecEnv([RandomEnv]), make_table(), 0
    )
    assert isinstance(learner, BranchingDQN)
    learner.learn(64)
    key = "mlp_extractor.value_net.0.weight"
    assert not torch.equal(learner.policy.state_dict()[key], learner.target.state_dict()[key])
    assert "target" in learner.get_parameters()


@pytest.mark.parametrize("algorithm", ["maskable_ppo", "ppo", "recurrent_ppo", "branching_dqn"])
def test_the_same_seed_gives_the_same_weights(algorithm: str) -> None:
    def trained() -> Any:
        learner = make_learner(algorithm, normalise="table" if algorithm == "branching_dqn" else "running")
        learner.learn(48)
        return learner

    one, two = trained().policy.state_dict(), trained().policy.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_settings_that_do_not_go_together_are_refused() -> None:
    for changes, told in (
        ({"algorithm": "recurrent_ppo", "network": "equivariant"}, "use agent.network=flat"),
        ({"algorithm": "recurrent_ppo", "warm_start": "oracle"}, "agent.warm_start=oracle: imitation shows single"),
        ({"algorithm": "branching_dqn", "normalise": "running"}, "agent.normalise=running needs rollouts"),
        ({"algorithm": "sarsa"}, "agent.algorithm: expected one of maskable_ppo, ppo"),
        ({"patience": -1}, "agent.patience: expected at least 0, got -1"),
        ({"explore_end": 2.0}, "agent.explore_end: expected 0 to 1, got 2.0"),
        ({"widths": ()}, "agent.widths: expected at least one width"),
    ):
        with pytest.raises(ValueError, match=told):
            make_settings(**changes)


def test_names_of_features_are_where_the_prior_reads_them() -> None:
    """Savings of a made-up table by hand: the prior's fast lookup against its definition."""
    table = make_table()
    prior = make_learner().policy.features_extractor.prior
    row = torch.as_tensor(random_observation(np.random.default_rng(0)).vector[None])
    glob, rows = row[:, :G], row[:, G:].reshape(1, N, P)
    estimate = torch.tensor([[0.0, 0.37, 1.0]])
    savings = prior._savings(glob, rows, estimate)[0]
    knots = [0, 1, 2, 4, 8]
    ratios = [1.0, *(float(glob[0, GLOBAL_INDEX[f"verify_ratio_{gamma}"]]) for gamma in knots[1:])]
    for draft in range(N):
        place = float(estimate[0, draft]) * 10
        low = min(int(place), 9)
        stats = table.statistics[draft, low] * (low + 1 - place) + table.statistics[draft, low + 1] * (place - low)
        accepted, drafted, steps = stats[..., 0], stats[..., 1], stats[..., 2]
        rounds = np.maximum(float(glob[0, GLOBAL_INDEX["room_tokens"]]) / (1.0 + accepted), 1.0)
        own = rows[0, draft].numpy()
        cost = np.interp(drafted, knots, ratios) + steps * own[DRAFT_INDEX["step_ratio"]]
        expected = prior.token_price * accepted - (cost + own[DRAFT_INDEX["catch_up_cost"]] / rounds - 1.0)
        assert np.allclose(savings[draft].numpy(), expected, rtol=1e-4, atol=1e-4)
