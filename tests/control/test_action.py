"""The action codec and both mask formats."""

from __future__ import annotations

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from runtime.control.action import ActionCodec
from runtime.core import GAMMAS, STOP_LEVELS, Decision, Victim


@st.composite
def decisions(draw: st.DrawFn, n_drafts: int = 3) -> Decision:
    draft = draw(st.none() | st.integers(0, n_drafts - 1))
    return Decision(
        draft,
        0 if draft is None else draw(st.sampled_from(GAMMAS)),
        draw(st.integers(0, len(STOP_LEVELS) - 1)),
        draw(st.none() | st.integers(0, n_drafts - 1)),
        draw(st.booleans()),
        draw(st.sampled_from(list(Victim))),
    )


@given(decisions())
def test_encode_then_decode_is_identity(decision: Decision) -> None:
    codec = ActionCodec(3)
    assert codec.decode(codec.encode(decision)) == decision


@given(st.integers(0, 2**32 - 1))
def test_masks_convert_both_ways_and_gymnasium_samples_from_them(seed: int) -> None:
    """Two formats of one mask (stable-baselines3-contrib #80, gym PR #2906)."""
    codec = ActionCodec(3)
    rng = np.random.default_rng(seed)
    mask = rng.random(codec.offsets[-1]) < 0.3
    mask[list(codec.offsets[:-1])] = True
    parts = codec.split_mask(mask)
    assert np.array_equal(codec.join_mask(parts), mask)
    space = gym.spaces.MultiDiscrete(list(codec.nvec), seed=seed % 1000)
    action = space.sample(mask=parts)
    assert all(mask[start + value] for start, value in zip(codec.offsets, action, strict=False))
