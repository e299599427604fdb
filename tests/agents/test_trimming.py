"""Trimmed action sets: what a mask leaves of one paper's dimensions."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.ppo import build_learner, predict
from agents.trimming import ACTION_SETS, Trimming
from runtime.control.action import ActionCodec
from runtime.core import GAMMAS
from runtime.errors import UserError
from tests.agents.test_policy import RandomEnv, make_settings, make_table, random_observation
from tests.factories import NAMES, make_world

CODEC = ActionCodec(3)


def parts(mask: torch.Tensor) -> list[list[bool]]:
    return [part[0].tolist() for part in torch.split(mask, list(CODEC.nvec), dim=1)]


def everything() -> torch.Tensor:
    return torch.ones(1, CODEC.offsets[-1], dtype=torch.bool)


def test_drafts_leaves_draft_choice_and_prefetch() -> None:
    speculate, stop, prefetch, kv, victim = parts(Trimming("drafts", 3, gamma=4, stop=2)(everything()))
    assert speculate == [True, *[False, False, True, False] * 3]
    assert stop == [False, False, True, False]
    assert prefetch == [True] * 4
    assert (kv, victim) == ([True, False], [True, False])


def test_lengths_leaves_lengths_of_one_draft_and_stored_kv() -> None:
    speculate, stop, prefetch, kv, victim = parts(Trimming("lengths", 3, draft=1)(everything()))
    assert speculate == [True, *[False] * 4, *[True] * 4, *[False] * 4]
    assert stop == [True, False, False, False]
    assert prefetch == [False, False, True, False]
    assert (kv, victim) == ([True, True], [False, True])


def test_too_long_a_fixed_length_gives_way_to_the_longest_legal_one() -> None:
    mask = everything()
    mask[0, 3], mask[0, 4] = False, False  # of the first draft only 1 and 2 fit
    speculate = parts(Trimming("drafts", 3, gamma=4)(mask))[0]
    assert speculate[1:5] == [False, True, False, False]
    assert speculate[5:9] == [False, False, True, False]


@given(st.integers(0, 2**32 - 1), st.sampled_from(ACTION_SETS), st.sampled_from(GAMMAS), st.integers(0, 3))
def test_every_dimension_keeps_a_legal_value(seed: int, actions: str, gamma: int, stop: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((8, CODEC.offsets[-1])) < 0.4
    mask[:, list(CODEC.offsets[:-1])] = True
    mask[:, CODEC.offsets[4]] = ~mask[:, CODEC.offsets[4] + 1] | (rng.random(8) < 0.5)  # drafts may not be to be had
    left = Trimming(actions, 3, gamma, stop, draft=seed % 3)(torch.from_numpy(mask)).numpy()
    assert not (left & ~mask).any()
    for start, end in zip(CODEC.offsets, CODEC.offsets[1:], strict=False):
        assert left[:, start:end].any(axis=1).all()


@pytest.mark.parametrize("algorithm", ["maskable_ppo", "ppo", "branching_dqn"])
def test_a_trained_policy_stays_within_its_set(algorithm: str) -> None:
    settings = make_settings(algorithm, actions="drafts", fixed_gamma=2, fixed_stop=1)
    learner = build_learner(settings, DummyVecEnv([RandomEnv]), make_table(), 0)
    learner.learn(64)
    rng = np.random.default_rng(0)
    for _ in range(50):
        observation = dataclasses.replace(random_observation(rng), mask=np.ones(CODEC.offsets[-1], dtype=np.bool_))
        decision = CODEC.decode(predict(learner, observation))
        assert decision.gamma in (0, 2)
        assert decision.stop == 1
        assert not decision.kv


def test_training_draws_only_from_the_set() -> None:
    settings = make_settings(actions="lengths", fixed_draft="math")
    learner: Any = build_learner(settings, DummyVecEnv([make_world().env]), make_table(), 0)
    learner.learn(64)
    drawn = learner.rollout_buffer.actions.reshape(-1, 5)
    chosen = drawn[:, 0][drawn[:, 0] > 0]
    assert len(chosen) and ((chosen - 1) // len(GAMMAS) == NAMES.index("math")).all()
    assert not drawn[:, 1].any()


def test_one_draft_has_to_be_named() -> None:
    with pytest.raises(UserError, match=r"expected one of code, math, lookup, got None.*zoo\.drafts=\[code\]"):
        build_learner(make_settings(actions="lengths"), DummyVecEnv([RandomEnv]), make_table(), 0)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"agent\.fixed_gamma: expected one of 1, 2, 4, 8, got 3"):
        Trimming("drafts", 3, gamma=3)
    with pytest.raises(ValueError, match=r"agent\.actions: expected one of all, drafts, lengths, got 'some'"):
        make_settings(actions="some")
