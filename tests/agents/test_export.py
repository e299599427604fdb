"""The exported graph: the library's decisions to rounding, few nodes, weights by their own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.deploy_prior import DeployPrior
from agents.export import export_policy
from agents.prior import HeuristicPrior
from runtime.control.action import ActionCodec
from runtime.control.frozen import FrozenController
from runtime.control.observation import DRAFT_FEATURES, GLOBAL_FEATURES, Observation, bounds
from runtime.core import Phase
from runtime.engine.native.library import kernels
from tests.agents.test_equivariant import table_of
from tests.agents.test_policy import CODEC, N, disturb, make_learner

Floats = npt.NDArray[np.float32]
MOST_NODES = 64
"""Of the default network once onnxruntime has folded what is constant."""


def drawn(n: int, count: int, seed: int) -> Floats:
    """Observations within the features' ranges; flags are 0 or 1, and every other row is of small numbers."""
    low, high = bounds(n)
    rng = np.random.default_rng(seed)
    most = np.where(rng.random((count, 1)) < 0.5, np.minimum(high, 4.0), high)
    rows: Floats = rng.uniform(low, most).astype(np.float32)
    units = [feature.unit for feature in (*GLOBAL_FEATURES, *(DRAFT_FEATURES * n))]
    flags = np.array([unit == "flag" for unit in units])
    rows[:, flags] = np.rint(rows[:, flags])
    return rows


def masks(count: int, seed: int) -> npt.NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    legal = rng.random((count, CODEC.offsets[-1])) < 0.5
    legal[:, list(CODEC.offsets[:-1])] = True
    return legal


def exported(learner: Any, folder: Path) -> Path:
    path = folder / "policy.onnx"
    export_policy(learner.policy, CODEC, len(bounds(N)[0]), path)
    return path


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**31), st.sampled_from([6.0, 12.0, 25.0]))
def test_the_deployed_prior_has_the_scores_of_the_prior(n: int, seed: int, sharpness: float) -> None:
    prior = HeuristicPrior(table_of(n), sharpness, token_price=0.65)
    rows = torch.from_numpy(drawn(n, 40, seed))
    expected, deployed = prior(rows), DeployPrior(prior)
    for row, wanted in zip(rows, expected, strict=True):
        got = deployed(row[None])[0]
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-2), (got - wanted).abs().max()


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_the_deployed_prior_holds_at_the_ends_of_all_ranges(edge: float) -> None:
    """No room, no context, certain drafts, everything free: where divisions and logarithms could break."""
    prior = HeuristicPrior(table_of(3))
    low, high = bounds(3)
    row = torch.from_numpy((low + edge * (high - low))[None])
    assert torch.allclose(DeployPrior(prior)(row), prior(row), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("taped", [True, False])
def test_ten_thousand_decisions_are_those_of_the_library(tmp_path: Path, taped: bool) -> None:
    """Where they differ, the library scores both values alike to rounding."""
    learner = make_learner()
    disturb(learner)
    frozen = FrozenController(exported(learner, tmp_path), N, len(bounds(N)[0]), taped=taped)
    assert frozen.taped is (taped and kernels() is not None)
    rows, legal = drawn(N, 10_000, 5), masks(10_000, 6)
    wanted = learner.predict(rows, action_masks=legal, deterministic=True)[0]
    with torch.no_grad():
        scores = learner.policy.scores(torch.from_numpy(rows)).numpy()
    different = 0
    for row, mask, library, score in zip(rows, legal, wanted, scores, strict=True):
        action = CODEC.encode(frozen.decide(Observation(Phase.DECODE, row, mask)))
        library = CODEC.encode(CODEC.decode(library))
        different += not np.array_equal(action, library)
        for start, ours, theirs in zip(CODEC.offsets, action, library, strict=False):
            scale = 1.0 + np.abs(score).max()
            assert abs(score[start + ours] - score[start + theirs]) <= 1e-5 * scale
    assert different <= 3


def test_the_graph_has_few_nodes(tmp_path: Path) -> None:
    path, folded = exported(make_learner(), tmp_path), tmp_path / "folded.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folded), 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert len(onnx.load(str(folded)).graph.node) <= MOST_NODES


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
@pytest.mark.parametrize(
    "settings",
    [
        {"network": "equivariant"},
        {"normalise": "running"},
        {"residual": False},
        {"actions": "drafts"},
        {"actions": "lengths", "fixed_draft": "math"},
    ],
)
def test_a_tape_runs_every_kind_of_small_policy(tmp_path: Path, settings: dict[str, Any]) -> None:
    learner = make_learner(**settings)
    disturb(learner)
    path = exported(learner, tmp_path)
    taped, other = (FrozenController(path, N, len(bounds(N)[0]), taped=taped) for taped in (True, False))
    assert taped.taped and not other.taped
    seen = [Observation(Phase.DECODE, *each) for each in zip(drawn(N, 500, 9), masks(500, 10), strict=True)]
    assert sum(taped.decide(each) != other.decide(each) for each in seen) <= 2


@pytest.mark.parametrize("normalise", ["table", "running"])
def test_the_graph_holds_the_weights_by_the_policys_names(tmp_path: Path, normalise: str) -> None:
    learner = make_learner(normalise=normalise)
    disturb(learner)
    own = learner.policy.state_dict()
    graph = onnx.load(str(exported(learner, tmp_path))).graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    decides = [name for name in own if name.startswith(("mlp_extractor.policy_net.", "action_net."))]
    statistics = ["features_extractor.mean", "features_extractor.variance"] if normalise == "running" else []
    assert len(decides) == 6
    for name in (*decides, *statistics):
        assert np.array_equal(held[name], own[name].numpy()), name


def test_shorter_dimensions_are_never_read_beyond_their_end(tmp_path: Path) -> None:
    """The rows of the choice are filled up with first values: nothing but them is legal here."""
    frozen = FrozenController(exported(make_learner(), tmp_path), N, len(bounds(N)[0]))
    mask = np.zeros(CODEC.offsets[-1], dtype=np.bool_)
    mask[list(CODEC.offsets[:-1])] = True
    for row in drawn(N, 50, 7):
        assert not CODEC.encode(frozen.decide(Observation(Phase.DECODE, row, mask))).any()
    last = np.zeros(CODEC.offsets[-1], dtype=np.bool_)
    last[[end - 1 for end in CODEC.offsets[1:]]] = True
    for row in drawn(N, 50, 8):
        action = CODEC.encode(frozen.decide(Observation(Phase.DECODE, row, last)))
        assert action.tolist() == [size - 1 for size in ActionCodec(N).nvec]
