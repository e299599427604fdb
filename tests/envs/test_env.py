"""The replay environment keeps Gymnasium's and stable-baselines3's contracts."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

import envs.registration  # noqa: F401 - registers the environments
from envs.base import SpecEnv
from runtime.control.observation import DRAFT_FEATURES, GLOBAL_FEATURES, bounds, feature_names, scales
from tests.factories import NAMES, make_world


def make() -> SpecEnv:
    return make_world().env()


def test_both_checkers_pass_without_a_warning() -> None:
    """stable-baselines3 #1422, #1992; Gymnasium #899."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check(gym.make("specpilot/Replay-v0", world=make_world()).unwrapped, skip_render_check=True)
        sb3_check(make())


def test_same_seed_and_decisions_give_the_same_rollout() -> None:
    first, second = make(), make()
    a, _ = first.reset(seed=7)
    b, _ = second.reset(seed=7)
    rng = np.random.default_rng(0)
    for step in range(300):
        assert np.array_equal(a, b), f"observations differ at step {step}"
        assert np.array_equal(first.action_masks(), second.action_masks())
        action = rng.integers(0, first.codec.nvec)
        a, reward, terminated, truncated, _ = first.step(action)
        b, *rest, _ = second.step(action)
        assert [reward, terminated, truncated] == rest
        if terminated:
            a, _ = first.reset()
            b, _ = second.reset()


def test_observations_stay_in_their_space_and_one_value_is_always_legal() -> None:
    env = make()
    observation, _ = env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(500):
        assert env.observation_space.contains(observation)
        assert all(part.any() for part in env.codec.split_mask(env.action_masks()))
        observation, _, terminated, _, _ = env.step(rng.integers(0, env.codec.nvec))
        if terminated:
            observation, _ = env.reset()


def test_legal_actions_are_never_counted_as_illegal_and_others_fall_back() -> None:
    env = make()
    env.reset(seed=2)
    for _ in range(400):
        action = env.action_space.sample(mask=env.codec.split_mask(env.action_masks()))
        *_, terminated, _, info = env.step(action)
        assert info["illegal"] == 0
        if terminated:
            env.reset()
    env.reset(seed=3)
    *_, info = env.step(np.array([4, 0, 0, 1, 0]))  # speculating while admitting, reusing where nothing is stored
    assert info["illegal"] == 2


def test_end_of_stream_terminates_and_a_step_limit_truncates() -> None:
    """Truncation is not termination (stable-baselines3 #633)."""
    env = make_world(max_steps=5).env()
    env.reset(seed=0)
    flags = [env.step(np.zeros(5, dtype=np.int64))[2:4] for _ in range(5)]
    assert flags[-1] == (False, True) and not any(terminated or truncated for terminated, truncated in flags[:-1])
    env = make_world(requests=1).env()
    env.reset(seed=0)
    terminated = truncated = False
    while not terminated:
        *_, terminated, truncated, info = env.step(np.zeros(5, dtype=np.int64))
    assert not truncated and info["stream"].committed == 40


def test_reward_adds_up_to_the_plain_steps_saved() -> None:
    env = make()
    env.reset(seed=4)
    total, terminated = 0.0, False
    while not terminated:
        _, reward, terminated, _, info = env.step(np.zeros(5, dtype=np.int64))
        total += reward
    counters = info["stream"]
    plain_s = (counters.committed - 4) * 0.1 + 4 * 0.031  # four prompts of 31 tokens, 1 ms each
    assert total == pytest.approx((plain_s - counters.seconds) / 0.1)


def test_step_before_reset_is_refused() -> None:
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\) first"):
        make().step(np.zeros(5, dtype=np.int64))


def test_the_feature_table_describes_the_observation_space() -> None:
    names = feature_names(NAMES)
    low, high = bounds(len(NAMES))
    space = make().observation_space
    assert isinstance(space, gym.spaces.Box)
    assert len(names) == len(set(names)) == len(low) == len(scales(len(NAMES))) == space.shape[0]
    assert np.array_equal(space.low, low) and np.array_equal(space.high, high)
    for feature in (*GLOBAL_FEATURES, *DRAFT_FEATURES):
        assert feature.low < feature.high and feature.scale > 0 and feature.unit and feature.meaning
