"""One policy for zoos of any size: no draft has a place of its own, weights fit any number of drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.equivariant import join_scores, split_scores
from agents.export import export_policy
from agents.ppo import build_learner
from agents.round_table import RoundTable
from agents.warm_start import _of_graph, load_weights
from runtime.control.action import ActionCodec
from runtime.control.frozen import FrozenController
from runtime.control.observation import G, Observation, P, bounds
from runtime.core import GAMMAS, STOP_LEVELS, Phase
from runtime.errors import UserError
from tests.agents.test_policy import RandomEnv, disturb, make_settings


class SizedEnv(RandomEnv):
    """Spaces of a zoo of ``n`` drafts; never stepped."""

    def __init__(self, n: int) -> None:
        low, high = bounds(n)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gym.spaces.MultiDiscrete(list(ActionCodec(n).nvec))


def table_of(n: int, order: list[int] | None = None) -> RoundTable:
    rng = np.random.default_rng(7)
    statistics = (rng.random((8, 11, len(GAMMAS), len(STOP_LEVELS), 3)) * 4).astype(np.float32)
    chosen = list(range(n)) if order is None else order
    return RoundTable(tuple(f"draft{i}" for i in chosen), statistics[chosen])


def learner_of(n: int, order: list[int] | None = None, **changes: Any) -> Any:
    chosen = make_settings(**{"network": "equivariant", **changes})
    return build_learner(chosen, DummyVecEnv([lambda: SizedEnv(n)]), table_of(n, order), 0)


def observations_of(n: int, count: int, seed: int) -> torch.Tensor:
    low, high = bounds(n)
    rng = np.random.default_rng(seed)
    return torch.as_tensor(rng.uniform(low, np.minimum(high, 20.0), (count, len(low))).astype(np.float32))


@given(st.integers(1, 6), st.integers(0, 100))
def test_scores_split_and_join(n: int, seed: int) -> None:
    scores = torch.randn(5, sum(ActionCodec(n).nvec), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(join_scores(*split_scores(scores, n)), scores)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(4)), st.booleans(), st.sampled_from(["table", "running"]))
def test_permuted_drafts_permute_the_scores(order: list[int], residual: bool, normalise: str) -> None:
    n, order = 4, list(order)
    plain = learner_of(n, residual=residual, normalise=normalise)
    permuted = learner_of(n, order, residual=residual, normalise=normalise)
    disturb(plain)
    seen = observations_of(n, 32, seed=sum(order[:2]))
    plain.policy.features_extractor.learn_scales(seen.numpy())
    load_weights(permuted.policy, plain.policy.state_dict())
    moved = torch.cat([seen[:, :G], seen[:, G:].reshape(-1, n, P)[:, order].flatten(1)], dim=1)
    shared, own = split_scores(plain.policy.scores(seen), n)
    shared_moved, own_moved = split_scores(permuted.policy.scores(moved), n)
    assert torch.allclose(own[:, order], own_moved, rtol=1e-4, atol=1e-3)
    if not residual:  # the prior's stop scores are those of the first of equally good drafts
        assert torch.allclose(shared, shared_moved, rtol=1e-4, atol=1e-3)
    values = [each.policy.predict_values(x) for each, x in ((plain, seen), (permuted, moved))]
    assert torch.allclose(values[0], values[1], rtol=1e-3, atol=1e-3)


def test_weights_of_three_drafts_serve_six(tmp_path: Path) -> None:
    small, large = learner_of(3), learner_of(6)
    disturb(small)
    before = large.policy.scores(observations_of(6, 8, 0))
    load_weights(large.policy, small.policy.state_dict())
    assert not torch.allclose(before, large.policy.scores(observations_of(6, 8, 0)), atol=1e-3)
    codec, size, path = ActionCodec(6), len(bounds(6)[0]), tmp_path / "policy.onnx"
    export_policy(large.policy, codec, size, path)
    frozen = FrozenController(path, 6, size)
    mask = np.ones(codec.offsets[-1], dtype=np.bool_)
    for row in observations_of(6, 20, 1).numpy():
        action, _ = large.predict(row, action_masks=mask, deterministic=True)
        assert codec.encode(frozen.decide(Observation(Phase.DECODE, row, mask))).tolist()[0] == int(action[0])


def test_a_bundle_of_a_network_that_never_learned_serves_another_zoo(tmp_path: Path) -> None:
    small, large = (
        learner_of(3),
        learner_of(6),
    )  # its biases are all zero, and export keeps one of several that are equal
    export_policy(small.policy, ActionCodec(3), len(bounds(3)[0]), tmp_path / "policy.onnx")
    load_weights(large.policy, _of_graph(tmp_path / "policy.onnx"))
    own, found = large.policy.state_dict(), small.policy.state_dict()
    assert all(
        torch.equal(own[name], found[name]) for name in own if name.startswith(("action_net.", "mlp_extractor.po"))
    )


def test_a_copied_draft_is_scored_as_its_twin() -> None:
    """What a draft gets depends on what it is, not on where it stands."""
    learner = learner_of(3, [0, 1, 1])
    disturb(learner)
    seen = observations_of(3, 16, 2)
    seen[:, G + 2 * P :] = seen[:, G + P : G + 2 * P]
    _, own = split_scores(learner.policy.scores(seen), 3)
    assert torch.allclose(own[:, 1], own[:, 2], atol=1e-4)
    assert not torch.allclose(own[:, 0], own[:, 1], atol=1e-2)


def test_a_flat_network_does_not_fit_another_zoo() -> None:
    with pytest.raises(UserError, match=r"does not fit this network and zoo.*agent\.network=equivariant"):
        load_weights(learner_of(4, network="flat").policy, learner_of(3, network="flat").policy.state_dict())
    with pytest.raises(UserError, match="does not fit"):
        load_weights(learner_of(3).policy, learner_of(3, network="flat").policy.state_dict())
