"""Small ONNX graphs, run by onnxruntime and as tapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from runtime.control.tape.block import Block
from runtime.control.tape.onnx_file import read_graph
from runtime.control.tape.tracing import Tracer
from runtime.engine.native.decisions import function

Floats = npt.NDArray[np.float32]
Nodes = Sequence[onnx.NodeProto]
X = (1, 12)
"""Shape of the input ``x`` of all graphs here."""


def model(nodes: Nodes, constants: Mapping[str, npt.NDArray[Any]], kind: int = TensorProto.FLOAT) -> bytes:
    """A graph from ``x`` to ``y``, as the bytes of a file."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = made.SerializeToString()
    return data


def by_onnxruntime(data: bytes, x: Floats) -> npt.NDArray[Any]:
    """``y`` as the library computes it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    result: npt.NDArray[Any] = session.run(None, {"x": x})[0]
    return result


def by_tape(data: bytes, rows: Sequence[Floats]) -> tuple[list[Floats], int]:
    """``y`` for every input, one after another from one tape, and how many steps it has."""
    block = Block(1 << 16)
    place = block.take(X)
    result = Tracer(read_graph(data), block, {"x": place}).result("y")
    steps, run = np.array(block.steps, dtype=np.int32), function("run_tape")
    results = []
    for x in rows:
        place[...] = x
        run(steps.ctypes.data, len(steps), block.memory.ctypes.data)
        results.append(result.copy())
    return results, len(steps)
