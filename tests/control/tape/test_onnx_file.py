"""ONNX files are read as the library reads them; what is damaged or strange is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from runtime.control.tape.onnx_file import UnreadableGraph, read_graph
from tests.control.tape.graphs import model

DTYPES = (np.float32, np.int32, np.int64, np.bool_, np.float64, np.float16)


def test_nodes_are_those_of_the_library() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], axes=[1, -1], keepdims=0),
        helper.make_node("Clip", ["m", "", "top"], ["c"]),
        helper.make_node("Gemm", ["c", "w"], ["y"], alpha=0.5, transB=1),
        helper.make_node("Odd", ["y"], ["z"], domain="com.example", floats=[0.5, 2.0], name="odd", mode="wrap"),
    ]
    graph = read_graph(model(nodes, {"w": np.eye(2, dtype=np.float32)}))
    assert [(n.operator, n.inputs, n.outputs, n.attributes) for n in graph.nodes] == [
        ("ReduceMax", ("x",), ("m",), {"axes": [1, -1], "keepdims": 0}),
        ("Clip", ("m", "", "top"), ("c",), {}),
        ("Gemm", ("c", "w"), ("y",), {"alpha": 0.5, "transB": 1}),
        ("com.example.Odd", ("y",), ("z",), {"floats": [0.5, 2.0], "mode": b"wrap"}),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 1)])
def test_tensors_are_those_of_the_library(dtype: type, shape: tuple[int, ...]) -> None:
    array: npt.NDArray[Any] = np.asarray(np.random.default_rng(0).normal(0.0, 9.0, shape)).astype(dtype)
    raw = read_graph(model([], {"t": array})).constants["t"]
    assert raw.dtype == dtype and np.array_equal(raw, array)
    if dtype is np.float16:
        return
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    listed = helper.make_tensor("t", kind, shape, array.ravel().tolist())
    attribute = helper.make_node("Constant", [], ["y"], value=listed)
    read = read_graph(model([attribute], {})).nodes[0].attributes["value"]
    assert read.dtype == dtype and np.array_equal(read, array)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_graph_or_refused(data: bytes) -> None:
    try:
        read_graph(data)
    except UnreadableGraph:
        pass


def test_every_file_that_was_cut_short_is_refused_or_read() -> None:
    whole = model([helper.make_node("Add", ["x", "c"], ["y"])], {"c": np.ones(12, dtype=np.float32)})
    refused = 0
    for end in range(0, len(whole), 7):
        try:
            read_graph(whole[:end])
        except UnreadableGraph:
            refused += 1
    assert refused > len(whole) // 7 // 2


def test_weights_in_another_file_and_strange_types_are_refused(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.ones(2, dtype=np.float32), "c")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    graph = helper.make_graph([], "g", [], [], [tensor])
    with pytest.raises(UnreadableGraph, match="the weights of c lie in another file"):
        read_graph(onnx.helper.make_model(graph).SerializeToString())
    strange = helper.make_graph([], "g", [], [], [helper.make_tensor("c", TensorProto.STRING, [1], [b"text"])])  # type: ignore[list-item]
    with pytest.raises(UnreadableGraph):
        read_graph(onnx.helper.make_model(strange).SerializeToString())
