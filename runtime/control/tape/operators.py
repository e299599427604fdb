"""What ONNX's operators mean, in numpy: for what is known ahead, for shapes, and for what only moves numbers about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runtime.control.tape.block import Untaped
from runtime.control.tape.onnx_file import DTYPES, Array, Node

Meaning = Callable[..., Any]
"""From a node and its inputs (None = left out) to an array, or several in a tuple."""


def _axes(node: Node, given: Array | None) -> tuple[int, ...]:
    """An attribute up to some version, an input later."""
    axes = node.attributes.get("axes") if given is None else given.tolist()
    return tuple(axes or ())


def _reshape(node: Node, x: Array, shape: Array) -> Array:
    if node.attributes.get("allowzero", 0):
        return x.reshape(shape.tolist())
    return x.reshape([x.shape[i] if length == 0 else length for i, length in enumerate(shape.tolist())])


def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return x.squeeze(_axes(node, axes) or None)


def _flatten(node: Node, x: Array) -> Array:
    axis = node.attributes.get("axis", 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _slice(node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None, by: Array | None = None) -> Any:
    parts = [slice(None)] * x.ndim
    chosen = range(len(starts)) if axes is None else axes.tolist()
    steps = [1] * len(starts) if by is None else by.tolist()
    for axis, start, end, step in zip(chosen, starts.tolist(), ends.tolist(), steps, strict=True):
        if step < 1:
            raise Untaped("a slice backwards")
        parts[axis] = slice(start, end, step)
    return x[tuple(parts)]


def _split(node: Node, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis, count = node.attributes.get("axis", 0), len(node.outputs)
    if sizes is None:
        each = -(-x.shape[axis] // count)
        return tuple(np.split(x, range(each, each * count, each), axis))
    return tuple(np.split(x, sizes.cumsum()[:-1], axis))


def _gemm(node: Node, a: Array, b: Array, c: Array | float | None = None) -> Any:
    get = node.attributes.get
    a, b = a.T if get("transA", 0) else a, b.T if get("transB", 0) else b
    return get("alpha", 1.0) * (a @ b) + get("beta", 1.0) * (0.0 if c is None else c)


def _clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    return np.minimum(np.maximum(x, -np.inf if low is None else low), np.inf if high is None else high)


def _reduced(operation: Callable[..., Any]) -> Meaning:
    def reduced(node: Node, x: Array, axes: Array | None = None) -> Any:
        return operation(x, axis=_axes(node, axes) or None, keepdims=bool(node.attributes.get("keepdims", 1)))

    return reduced


def _largest_at(node: Node, x: Array) -> Any:
    if node.attributes.get("select_last_index", 0):
        raise Untaped("the last of the best")
    return x.argmax(node.attributes.get("axis", 0), keepdims=bool(node.attributes.get("keepdims", 1)))


def _gather(node: Node, x: Array, places: Array) -> Any:
    return np.take(x, places.astype(np.int64), node.attributes.get("axis", 0), mode="wrap")


def _filled(node: Node, shape: Array) -> Array:
    value = node.attributes.get("value", np.zeros(1, np.float32))
    return np.full(shape.tolist(), value[0])


def _where(node: Node, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition != 0, x, y)


def _two(operation: Callable[[Array, Array], Array]) -> Meaning:
    return lambda node, x, y: operation(x, y)


def _one(operation: Callable[[Array], Array]) -> Meaning:
    return lambda node, x: operation(x)


MOVING: dict[str, Meaning] = {
    "Cast": lambda node, x: x.astype(DTYPES[node.attributes["to"]]),
    "Expand": lambda node, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Flatten": _flatten,
    "Identity": _one(lambda x: x),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": lambda node, x: x.transpose(node.attributes.get("perm")),
    "Unsqueeze": lambda node, x, axes=None: np.expand_dims(x, _axes(node, axes)),
}
"""What changes no number: a view will do, most of the time."""

COMPUTING: dict[str, Meaning] = {
    "Add": _two(np.add),
    "And": _two(np.logical_and),
    "ArgMax": _largest_at,
    "Clip": _clip,
    "Concat": lambda node, *parts: np.concatenate(parts, node.attributes["axis"]),
    "Div": _two(lambda x, y: x / y if x.dtype.kind == "f" else x // y),
    "Exp": _one(np.exp),
    "Gather": _gather,
    "Gemm": _gemm,
    "Greater": _two(np.greater),
    "Log": _one(np.log),
    "MatMul": _two(np.matmul),
    "Mul": _two(np.multiply),
    "Not": _one(lambda x: x == 0),
    "ReduceMax": _reduced(np.max),
    "ReduceMean": _reduced(np.mean),
    "Relu": _one(lambda x: np.maximum(x, 0)),
    "Sigmoid": _one(lambda x: 1 / (1 + np.exp(-x))),
    "Sub": _two(np.subtract),
    "Tanh": _one(np.tanh),
    "Where": _where,
}
"""What a step can do."""

AHEAD: dict[str, Meaning] = {
    "Constant": lambda node: node.attributes["value"],
    "ConstantOfShape": _filled,
    "Equal": _two(np.equal),
    "Max": lambda node, *parts: np.maximum.reduce(np.broadcast_arrays(*parts)),
    "Shape": lambda node, x: np.array(x.shape),
    "Sqrt": _one(np.sqrt),
    "Tile": lambda node, x, repeats: np.tile(x, repeats.tolist()),
}
"""What has to be known ahead."""


def meaning(node: Node, inputs: Sequence[Array | None], known: bool) -> tuple[Array, ...]:
    """What a node makes of its inputs.

    Args:
        node: The node.
        inputs: Its inputs in order, None where one is left out.
        known: Whether all of them are constants.

    Raises:
        Untaped: If that is not known here.
    """
    tables = (MOVING, COMPUTING, AHEAD) if known else (MOVING, COMPUTING)
    found = next((table[node.operator] for table in tables if node.operator in table), None)
    if found is None:
        raise Untaped(f"the operator {node.operator}")
    try:
        with np.errstate(all="ignore"):
            made = found(node, *inputs)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Untaped(f"this {node.operator}: {error}") from error
    return made if isinstance(made, tuple) else (np.asarray(made),)
