"""The frozen policy: any graph with the right names runs, and remembers from decision to decision."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime.control import frozen as frozen_module
from runtime.control.action import ActionCodec
from runtime.control.frozen import FrozenController
from runtime.control.observation import Observation, bounds
from runtime.control.tape.tape import Tape
from runtime.core import Phase, Victim
from runtime.engine.native import decisions
from runtime.engine.native.library import kernels
from runtime.errors import UserError

N = 2
CODEC = ActionCodec(N)
SIZE = len(bounds(N)[0])


def write(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], memory: bool = False) -> Path:
    """A graph with the inputs and outputs of a policy."""
    inputs = [("observation", TensorProto.FLOAT, [1, SIZE]), ("mask", TensorProto.BOOL, [1, CODEC.offsets[-1]])]
    outputs = [("action", TensorProto.INT64, [1, 5])]
    if memory:
        inputs.append(("hidden", TensorProto.FLOAT, [1, 1, 1]))
        outputs.append(("next_hidden", TensorProto.FLOAT, [1, 1, 1]))
    graph = helper.make_graph(
        nodes, "policy",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def seeing(first: float, legal: bool = True) -> Observation:
    vector = np.zeros(SIZE, dtype=np.float32)
    vector[0] = first
    return Observation(Phase.DECODE, vector, np.full(CODEC.offsets[-1], legal))


def reader(path: Path) -> FrozenController:
    """Speculates as the first feature says; uses KV if the first value is legal."""
    nodes = [
        helper.make_node("Gather", ["observation", "zero"], ["first"], axis=1),
        helper.make_node("Gather", ["mask", "zero"], ["legal"], axis=1),
        helper.make_node("Cast", ["first"], ["speculate"], to=TensorProto.INT64),
        helper.make_node("Cast", ["legal"], ["kv"], to=TensorProto.INT64),
        helper.make_node("Concat", ["speculate", "two", "kv", "kv", "kv"], ["action"], axis=1),
    ]
    return FrozenController(write(path, nodes, {"zero": np.array([0]), "two": np.array([[2]])}), N, SIZE)


def test_every_decision_is_of_its_own_observation(tmp_path: Path) -> None:
    frozen = reader(tmp_path / "policy.onnx")
    first, again = frozen.decide(seeing(1.0)), frozen.decide(seeing(0.0, legal=False))
    assert (first.draft, first.gamma, first.stop, first.prefetch, first.kv) == (0, 1, 2, 0, True)
    assert first.victim is Victim.KV
    assert (again.draft, again.gamma, again.stop, again.prefetch, again.kv) == (None, 0, 2, None, False)
    assert again.victim is Victim.DRAFTS
    assert frozen.decide(seeing(8.0)).draft == 1


def test_an_observation_is_not_kept(tmp_path: Path) -> None:
    """The graph reads a place of its own: observations of others may change after a decision."""
    frozen, seen = reader(tmp_path / "policy.onnx"), seeing(3.0)
    before = frozen.decide(seen)
    seen.vector[0] = 0.0
    assert seen.vector[0] == 0.0 and frozen.decide(seeing(3.0)) == before


def test_memory_goes_on_in_a_stream_and_begins_anew_with_the_next(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["hidden", "one"], ["next_hidden"]),
        helper.make_node("Reshape", ["hidden", "shape"], ["count"]),
        helper.make_node("Cast", ["count"], ["speculate"], to=TensorProto.INT64),
        helper.make_node("Concat", ["speculate", "rest"], ["action"], axis=1),
    ]
    constants = {
        "one": np.ones((1, 1, 1), dtype=np.float32),
        "shape": np.array([1, 1]),
        "rest": np.zeros((1, 4), dtype=np.int64),
    }
    frozen = FrozenController(write(tmp_path / "policy.onnx", nodes, constants, memory=True), N, SIZE)
    for _ in range(2):
        frozen.begin_stream()
        assert [frozen.decide(seeing(0.0)).gamma for _ in range(4)] == [0, 1, 2, 4]


def test_a_graph_of_other_inputs_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["fixed"], ["action"])]
    path = write(tmp_path / "policy.onnx", nodes, {"fixed": np.zeros((1, 5), dtype=np.int64)})
    with pytest.raises(UserError, match=r"the policy reads .* this zoo and runtime give .*: use the bundle made for"):
        FrozenController(path, N + 1, SIZE)


def test_a_memory_that_is_not_given_back_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["fixed"], ["action"]),
        helper.make_node("Identity", ["hidden"], ["next_hidden"]),
    ]
    path = write(tmp_path / "policy.onnx", nodes, {"fixed": np.zeros((1, 5), dtype=np.int64)}, memory=True)
    model = onnx.load(str(path))
    model.graph.node[1].output[0] = model.graph.output[1].name = "other"
    onnx.save(model, str(path))
    with pytest.raises(UserError, match="the policy gives no next_hidden: export the bundle again"):
        FrozenController(path, N, SIZE)


def network(path: Path) -> Path:
    """A policy that a tape can run: the best legal one of random scores."""
    rng, offsets = np.random.default_rng(0), CODEC.offsets
    widest = max(CODEC.nvec)
    places = [[*range(a, b), *[a] * (widest - b + a)] for a, b in pairwise(offsets)]
    nodes = [
        helper.make_node("Gemm", ["observation", "weights"], ["scores"]),
        helper.make_node("Where", ["mask", "scores", "never"], ["legal"]),
        helper.make_node("Gather", ["legal", "places"], ["rows"], axis=1),
        helper.make_node("ArgMax", ["rows"], ["action"], axis=2, keepdims=0),
    ]
    constants = {
        "weights": rng.normal(size=(SIZE, offsets[-1])).astype(np.float32),
        "never": np.full((1, 1), -1e8, np.float32),
        "places": np.array(places),
    }
    return write(path, nodes, constants)


def random_observation(rng: np.random.Generator) -> Observation:
    vector = rng.normal(size=SIZE).astype(np.float32)
    return Observation(Phase.DECODE, vector, (rng.random(CODEC.offsets[-1]) < 0.5) | CODEC.first_values)


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
def test_a_tape_decides_as_onnxruntime_does(tmp_path: Path) -> None:
    path, rng = network(tmp_path / "policy.onnx"), np.random.default_rng(1)
    taped, other = FrozenController(path, N, SIZE), FrozenController(path, N, SIZE, taped=False)
    assert taped.taped and not other.taped
    for _ in range(300):
        observation = random_observation(rng)
        assert taped.decide(observation) == other.decide(observation)


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
def test_policies_do_not_share_what_they_work_on(tmp_path: Path) -> None:
    path, rng = network(tmp_path / "policy.onnx"), np.random.default_rng(2)
    first, second = FrozenController(path, N, SIZE), FrozenController(path, N, SIZE)
    seen = [random_observation(rng) for _ in range(20)]
    alone = [first.decide(observation) for observation in seen]
    together = [(first.decide(a), second.decide(b)) for a, b in zip(seen, reversed(seen), strict=True)]
    assert together == list(zip(alone, reversed(alone), strict=True))


def test_without_compiled_code_onnxruntime_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, observation = network(tmp_path / "policy.onnx"), random_observation(np.random.default_rng(3))
    wanted = FrozenController(path, N, SIZE).decide(observation)
    monkeypatch.setattr(decisions, "kernels", lambda: None)
    frozen = FrozenController(path, N, SIZE)
    assert not frozen.taped and frozen.decide(observation) == wanted


def test_a_tape_that_decides_otherwise_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Tape):
        def run(self) -> None:
            super().run()
            self.action[1] ^= 1

    monkeypatch.setattr(frozen_module, "Tape", Wrong)
    frozen = FrozenController(network(tmp_path / "policy.onnx"), N, SIZE)
    assert not frozen.taped
    assert kernels() is None or "compiled code decides otherwise than onnxruntime" in caplog.text
