"""The batched replay as a ``VecEnv``: what stable-baselines3 and people expect of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from envs.batched import BatchedReplay
from envs.batched.books import SUMMED
from envs.world import WorldConfig
from runtime.errors import UserError
from tests.batched.worlds import Shape, make

Actions = np.ndarray[Any, np.dtype[np.int64]]


def actions_for(batched: BatchedReplay, rng: np.random.Generator) -> Actions:
    """Any actions, legal or not."""
    return rng.integers(0, batched.codec.nvec, size=(batched.num_envs, 5))


def started(n_envs: int = 3, seed: int = 0, shape: Shape | None = None, **options: Any) -> BatchedReplay:
    batched = BatchedReplay(make(shape or Shape()), n_envs, **options)
    batched.seed(seed)
    batched.reset()
    return batched


def test_it_returns_what_a_dummy_vec_env_of_monitored_environments_returns() -> None:
    world = make(Shape(max_steps=60))
    dummy, batched = DummyVecEnv([lambda: Monitor(world.env()) for _ in range(3)]), BatchedReplay(world, 3)
    assert dummy.observation_space == batched.observation_space and dummy.action_space == batched.action_space
    dummy.seed(4)
    batched.seed(4)
    assert np.array_equal(np.asarray(dummy.reset()), batched.reset())
    rng, ended = np.random.default_rng(0), 0
    for _ in range(400):
        assert np.array_equal(get_action_masks(dummy), get_action_masks(batched))
        actions = actions_for(batched, rng)
        want: Any = dummy.step(actions)
        got = batched.step(actions)
        for a, b in zip(want[:3], got[:3], strict=True):
            assert a.dtype == b.dtype and np.array_equal(a, b)
        for wanted, given in zip(want[3], got[3], strict=True):
            assert wanted.keys() == given.keys()
            assert (
                wanted["TimeLimit.truncated"] == given["TimeLimit.truncated"] and wanted["illegal"] == given["illegal"]
            )
            if "episode" in wanted:
                ended += 1
                assert (wanted["episode"]["r"], wanted["episode"]["l"]) == (
                    given["episode"]["r"],
                    given["episode"]["l"],
                )
                assert np.array_equal(wanted["terminal_observation"], given["terminal_observation"])
                assert wanted["stream"] == given["stream"]
    assert ended > 10


def test_what_a_step_returned_stays_when_the_next_is_taken() -> None:
    batched = started()
    rng = np.random.default_rng(0)
    vectors, rewards, dones, _ = batched.step(actions_for(batched, rng))
    masks = batched.masks()
    kept = [array.copy() for array in (vectors, rewards, dones, masks)]
    for _ in range(5):
        batched.step(actions_for(batched, rng))
    assert all(np.array_equal(a, b) for a, b in zip(kept, (vectors, rewards, dones, masks), strict=True))


def test_threads_change_nothing() -> None:
    one, two = (started(130, threads=threads) for threads in (1, 2))
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = actions_for(one, rng)
        for a, b in zip(one.step(actions)[:3], two.step(actions)[:3], strict=True):
            assert np.array_equal(a, b)
    one.close()
    two.close()


def test_a_kept_state_goes_on_exactly() -> None:
    first = started(shape=Shape(requests=2))
    rng = np.random.default_rng(0)
    for _ in range(70):
        first.step(actions_for(first, rng))
    first.since_last_asked()
    state = first.state_dict()
    state["json"] = json.loads(json.dumps(state["json"]))
    second = BatchedReplay(make(Shape(requests=2)), 3)
    second.load_state_dict(state)
    assert np.array_equal(first.masks(), second.masks())
    ended = 0
    for _ in range(200):
        actions = actions_for(first, rng)
        a, b = first.step(actions), second.step(actions)
        assert all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
        ended += int(a[2].sum())
    assert ended > 3
    assert first.since_last_asked() == second.since_last_asked()


def test_a_state_of_another_environment_is_refused() -> None:
    state = started().state_dict()
    with pytest.raises(UserError, match=r"expected a state with streams.whole of shape \(2, .* another number of env"):
        BatchedReplay(make(Shape()), 2).load_state_dict(state)
    state["json"]["schema"] = 0
    with pytest.raises(UserError, match="expected a state of schema 1, got 0"):
        BatchedReplay(make(Shape()), 3).load_state_dict(state)


def test_sums_are_those_of_the_episodes() -> None:
    batched = started(shape=Shape(requests=2))
    rng = np.random.default_rng(0)
    sums = dict.fromkeys(SUMMED, 0.0)
    for _ in range(4):
        for _ in range(50):
            batched.step(actions_for(batched, rng))
        told = batched.since_last_asked()
        sums = {name: sums[name] + told[name] for name in SUMMED}
    streams = batched.streams
    again = started(shape=Shape(requests=2))
    rng = np.random.default_rng(0)
    committed = seconds = 0.0
    for _ in range(200):
        for info in again.step(actions_for(again, rng))[3]:
            committed += info["stream"].committed if "stream" in info else 0
            seconds += info["stream"].seconds if "stream" in info else 0.0
    now = again.totals.told or again.since_last_asked()
    assert sums["committed"] == now["committed"] and committed < sums["committed"]
    assert sums["seconds"] == pytest.approx(now["seconds"]) and seconds < sums["seconds"]
    assert np.array_equal(streams.whole, again.streams.whole)


def test_a_learner_learns_on_it() -> None:
    batched = BatchedReplay(make(Shape()), 8)
    assert is_masking_supported(batched)
    learner = MaskablePPO("MlpPolicy", batched, n_steps=16, batch_size=64, n_epochs=1, seed=0, device="cpu")
    learner.learn(512)
    assert learner.num_timesteps == 512


def test_it_can_be_wrapped() -> None:
    wrapped = VecNormalize(started(), norm_obs=True)
    wrapped.reset()
    seen: Any = wrapped.step(np.zeros((3, 5), dtype=np.int64))[0]
    inner: Any = wrapped.venv
    assert seen.shape == (3, *inner.observation_space.shape)
    assert np.array_equal(np.stack(wrapped.env_method("action_masks")), inner.masks())


def test_attributes_and_methods() -> None:
    batched = started()
    assert batched.env_is_wrapped(Monitor) == [True] * 3 and batched.env_is_wrapped(gym.Wrapper) == [False] * 3
    assert batched.get_attr("codec", [0]) == [batched.codec]
    assert np.array_equal(batched.env_method("action_masks", indices=1)[0], batched.masks()[1])
    with pytest.raises(AttributeError, match="'speed' cannot be set"):
        batched.set_attr("speed", 1)
    with pytest.raises(AttributeError, match="action_masks alone, not 'jump'"):
        batched.env_method("jump")


def test_what_is_not_compiled_is_refused() -> None:
    world = make(Shape())
    memory = replace(world.config.memory, disk_bytes=5000)
    disk = replace(world, config=WorldConfig(memory))
    with pytest.raises(UserError, match=r"no stored KV on disk, got a disk limit of 5000 bytes: .*env\.batched=false"):
        BatchedReplay(disk, 2)
    with pytest.raises(UserError, match="share traces, drafts, topic predictor, workload and split"):
        BatchedReplay([world, make(Shape(requests=9))], 2)
    with pytest.raises(UserError, match="at least one world, got none"):
        BatchedReplay([], 2)
    with pytest.raises(UserError, match=r"env.n_envs must be at least 1, got 0"):
        BatchedReplay(world, 0)


def test_wrong_use_is_refused() -> None:
    batched = BatchedReplay(make(Shape()), 2)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\) first"):
        batched.step(np.zeros((2, 5), dtype=np.int64))
    batched.reset()
    with pytest.raises(ValueError, match=r"expected actions of shape \(2, 5\) below .*, got shape \(3, 5\)"):
        batched.step(np.zeros((3, 5), dtype=np.int64))
    with pytest.raises(ValueError, match=r"got shape \(2, 5\) with values up to \[0, 0, 0, 0, 2\]"):
        batched.step(np.array([[0, 0, 0, 0, 2], [0, 0, 0, 0, 0]]))
