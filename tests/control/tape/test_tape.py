"""A tape computes what onnxruntime does, operator by operator; what it cannot do it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime.control.tape.block import Block, Untaped
from runtime.control.tape.onnx_file import read_graph
from runtime.control.tape.tracing import Tracer
from runtime.engine.native.library import kernels
from tests.control.tape.graphs import Nodes, X, by_onnxruntime, by_tape, model

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler")

RNG = np.random.default_rng(0)


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A node; names are separated by spaces, ``-`` is an input that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), **attributes)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


SPARSE = normal(12, 9) * (RNG.random((12, 9)) < 0.1)
CASES: dict[str, tuple[Nodes, dict[str, Any]]] = {
    "add": ([node("Add", "x c")], {"c": normal(1, 12)}),
    "of a column": ([node("Reshape", "x s", "r"), node("Mul", "r c")], {"s": ints(3, 4), "c": normal(3, 1)}),
    "a length that stays": ([node("Reshape", "x s", "r"), node("Exp", "r")], {"s": ints(0, 3, -1)}),
    "outer": (
        [node("Reshape", "x s", "r"), node("Reshape", "x t", "q"), node("Sub", "r q")],
        {"s": ints(12, 1), "t": ints(1, 12)},
    ),
    "divide": ([node("Div", "c x")], {"c": normal(12)}),
    "exp": ([node("Exp", "x")], {}),
    "log": ([node("Mul", "x x", "q"), node("Log", "q")], {}),
    "sigmoid": ([node("Sigmoid", "x")], {}),
    "tanh": ([node("Mul", "x c", "q"), node("Tanh", "q")], {"c": np.linspace(0.001, 9.0, 12, dtype=np.float32)}),
    "relu": ([node("Relu", "x")], {}),
    "clip": ([node("Clip", "x a b")], {"a": np.float32(-0.5), "b": np.float32(0.25)}),
    "clip above alone": ([node("Clip", "x - b")], {"b": np.float32(0.25)}),
    "clip below alone": ([node("Clip", "x a")], {"a": np.float32(0.25)}),
    "where": (
        [node("Greater", "x c", "g"), node("Where", "g x d")],
        {"c": np.zeros(1, np.float32), "d": normal(1, 12)},
    ),
    "truths": (
        [
            node("Greater", "x a", "g"), node("Greater", "b x", "l"), node("Not", "l", "n"), node("And", "g n", "t"),
            node("Where", "t x a"),
        ],
        {"a": np.full(1, -0.5, np.float32), "b": np.full(1, 0.5, np.float32)},
    ),
    "split": (
        [node("Split", "x s", "a b c", axis=1), node("Add", "a b", "d"), node("Concat", "c d k", axis=1)],
        {"s": ints(4, 4, 4), "k": normal(1, 3)},
    ),
    "slice": (
        [node("Slice", "x s e a b", "p"), node("Exp", "p")],
        {"s": ints(1), "e": ints(11), "a": ints(1), "b": ints(3)},
    ),
    "turned": (
        [node("Reshape", "x s", "r"), node("Transpose", "r", "t", perm=[1, 0]), node("Reshape", "t u", "v"),
         node("Exp", "v")],
        {"s": ints(3, 4), "u": ints(2, -1)},
    ),
    "spread": (
        [node("Reshape", "x s", "r"), node("Expand", "r e", "w"), node("Mul", "w c")],
        {"s": ints(3, 1, 4), "e": ints(1, 5, 1), "c": normal(3, 5, 4)},
    ),
    "axes come and go": (
        [node("Unsqueeze", "x a", "u"), node("Squeeze", "u b", "v"), node("Flatten", "v", "w"), node("Exp", "w")],
        {"a": ints(0), "b": ints(0, 1)},
    ),
    "gemm": ([node("Gemm", "x w b", transB=1)], {"w": normal(9, 12), "b": normal(9)}),
    "gemm without a bias": ([node("Gemm", "x w")], {"w": normal(12, 9)}),
    "sparse gemm": ([node("Gemm", "x w b")], {"w": SPARSE.astype(np.float32), "b": normal(9)}),
    "product": ([node("MatMul", "x w")], {"w": normal(12, 5)}),
    "products side by side": (
        [node("Reshape", "x s", "r"), node("MatMul", "r w")],
        {"s": ints(2, 3, 1, 2), "w": normal(3, 2, 5)},
    ),
    "product of two inputs": (
        [node("Reshape", "x s", "r"), node("Reshape", "x t", "q"), node("MatMul", "r q")],
        {"s": ints(4, 3), "t": ints(3, 4)},
    ),
    "product with a turned input": (
        [node("Reshape", "x s", "r"), node("Transpose", "r", "t", perm=[1, 0]), node("MatMul", "r t")],
        {"s": ints(4, 3)},
    ),
    "largest": ([node("ReduceMax", "x", axes=[1], keepdims=0)], {}),
    "largest of two axes": (
        [node("Reshape", "x s", "r"), node("ReduceMax", "r", axes=[0, 2], keepdims=1)],
        {"s": ints(2, 3, 2)},
    ),
    "mean of an axis": (
        [node("Reshape", "x s", "r"), node("ReduceMean", "r", axes=[1], keepdims=0)], {"s": ints(2, 3, 2)}
    ),
    "joined along a later axis": (
        [node("Reshape", "x s", "r"), node("Concat", "r k r", "j", axis=-1), node("Reshape", "j f", "g"),
         node("Gemm", "g w", transB=1)],
        {"s": ints(1, 3, 4), "k": normal(1, 3, 2), "f": ints(1, 30), "w": normal(5, 30)},
    ),
    "largest of all": ([node("ReduceMax", "x")], {}),
    "taken": ([node("Gather", "x i", axis=1)], {"i": ints(3, -1, 0, 3)}),
    "taken in rows": (
        [node("Reshape", "x s", "r"), node("Gather", "r i", axis=0)],
        {"s": ints(4, 3), "i": np.array([[0, 2], [3, 3]])},
    ),
    "a row that is chosen": (
        [node("Reshape", "x s", "r"), node("ArgMax", "x", "a", axis=1, keepdims=0), node("Gather", "k a", axis=0)],
        {"s": ints(4, 3), "k": normal(12, 3)},
    ),
    "a column that is chosen": (
        [node("Reshape", "x s", "r"), node("ReduceMax", "r", "m", axes=[0], keepdims=0),
         node("ArgMax", "m", "a", axis=0, keepdims=1), node("Gather", "r a", axis=1)],
        {"s": ints(4, 3)},
    ),
    "known ahead": (
        [node("Sqrt", "c", "q"), node("Max", "q d", "m"), node("Shape", "m", "n"), node("ConstantOfShape", "n", "z"),
         node("Tile", "m t", "l"), node("Cast", "i", "f", to=TensorProto.FLOAT), node("Add", "m f", "o"),
         node("Mul", "x l", "p"), node("Sub", "p o", "u"), node("Add", "u z")],
        {"c": np.abs(normal(1)), "d": np.full(1, 0.5, np.float32), "t": ints(12), "i": ints(3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_tape_computes_what_onnxruntime_does(case: str) -> None:
    nodes, constants = CASES[case]
    data, rows = model(nodes, constants), [normal(*X) for _ in range(5)]
    rows[3][0, ::2] = 0.0
    got, _ = by_tape(data, rows)
    for x, y in zip(rows, got, strict=True):
        wanted = by_onnxruntime(data, x)
        assert y.shape == wanted.shape
        np.testing.assert_allclose(y, wanted, rtol=2e-6, atol=2e-6)


def test_the_first_of_the_best_is_chosen() -> None:
    data = model([node("ArgMax", "x", axis=1)], {}, TensorProto.INT64)
    ties = np.array([[0, 2, 1, 2, 0, 2, 1, 1, 0, 0, 2, 0], [-1] * 12, [3] + [2] * 11], dtype=np.float32)
    got, _ = by_tape(data, [row[None] for row in ties])
    assert [y.item() for y in got] == [by_onnxruntime(data, row[None]).item() for row in ties] == [1, 0, 0]


def test_views_and_constants_take_no_step() -> None:
    nodes = [
        node("Add", "c c", "d"), node("Reshape", "x s", "r"), node("Unsqueeze", "r a", "u"), node("Add", "u d")
    ]  # fmt: skip
    _, steps = by_tape(model(nodes, {"c": normal(1), "s": ints(3, 4), "a": ints(0)}), [])
    assert steps == 1


@pytest.mark.parametrize(
    ("nodes", "constants", "message"),
    [
        ([node("Softmax", "x")], {}, "the operator Softmax"),
        ([node("Cast", "x", to=TensorProto.INT64)], {}, "a conversion"),
        ([node("Gemm", "x w", alpha=2.0)], {"w": normal(12, 2)}, "a scaled product"),
        ([node("ArgMax", "x", axis=1, select_last_index=1)], {}, "the last of the best"),
        ([node("Slice", "x s e a b")], {n: ints(v) for n, v in zip("seab", (9, 1, 1, -1), strict=True)}, "backwards"),
        ([node("Expand", "x e", "y")], {"e": ints(70000, 1)}, None),
        ([node("Expand", "x e", "w"), node("Exp", "w")], {"e": ints(70000, 1)}, "more than 65536 numbers"),
        ([node("Identity", "x", "other")], {}, "no output y"),
    ],
)
def test_what_a_tape_cannot_do_is_refused(nodes: Nodes, constants: dict[str, Any], message: str | None) -> None:
    block = Block(1 << 16)
    graph = read_graph(model(nodes, constants))
    inputs = {"x": block.take(X)}
    if message is None:
        assert Tracer(graph, block, inputs).result("y").shape == (70000, 12)
        return
    with pytest.raises(Untaped, match=message):
        Tracer(graph, block, inputs).result("y")
