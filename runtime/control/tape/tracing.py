"""From an ONNX graph to a tape: the graph is run once in numpy, on arrays that lie in the block.

What depends on constants alone is known then. What only moves numbers about is a numpy view. All else becomes a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from runtime.control.tape.block import DIMENSIONS, Block, Floats, Kind, Place, Untaped, merged, strides_of
from runtime.control.tape.onnx_file import Array, Graph, Node
from runtime.control.tape.operators import MOVING, meaning

FEW = 0.25
"""Share of weights other than 0 below which a matrix is sparse."""
BY_ELEMENT = {
    "Add": Kind.ADD, "And": Kind.MUL, "Div": Kind.DIV, "Exp": Kind.EXP, "Greater": Kind.GREATER, "Log": Kind.LOG,
    "Mul": Kind.MUL, "Relu": Kind.RELU, "Sigmoid": Kind.SIGMOID, "Sub": Kind.SUB, "Tanh": Kind.TANH,
    "Where": Kind.WHERE,
}  # fmt: skip
REDUCING = {"ArgMax": Kind.LARGEST_AT, "ReduceMax": Kind.LARGEST, "ReduceMean": Kind.MEAN}
FLOAT = 1
"""ONNX's number of float32."""


class Value(NamedTuple):
    """A tensor of the graph: a constant, or a view of the block, where everything is a float."""

    array: Array
    known: bool


class Tracer:
    """Traces one graph.

    Args:
        graph: Nodes and constants.
        block: Where everything is put.
        inputs: Views of the block by the graph's names.
    """

    def __init__(self, graph: Graph, block: Block, inputs: Mapping[str, Floats]) -> None:
        self._block = block
        self._values = {name: Value(array, True) for name, array in graph.constants.items()}
        self._values |= {name: Value(array, False) for name, array in inputs.items()}
        self._put: dict[int, tuple[Array, Floats]] = {}
        for node in graph.nodes:
            self._run(node)

    def result(self, name: str) -> Array:
        """What an output of the graph is, in the block.

        Raises:
            Untaped: If the graph does not make it.
        """
        if name not in self._values:
            raise Untaped(f"no output {name}")
        return self._placed(self._values[name])

    def _run(self, node: Node) -> None:
        inputs = [self._values[name] if name else None for name in node.inputs]
        arrays = [None if value is None else value.array for value in inputs]
        known = all(value is None or value.known for value in inputs)
        made = meaning(node, arrays, known)
        if not known:
            moving = node.operator in MOVING
            made = self._moved(node, arrays[0], made) if moving else (self._step(node, inputs, made[0]),)
        self._values |= {name: Value(array, known) for name, array in zip(node.outputs, made, strict=True)}

    def _placed(self, value: Value) -> Array:
        """The tensor in the block; a constant is put there once."""
        if not value.known:
            return value.array
        kept = self._put.get(id(value.array))
        if kept is None:
            kept = self._put[id(value.array)] = (value.array, self._block.put(value.array))
        return kept[1]

    # -- nodes that depend on an input ---------------------------------------------------------------------------

    def _moved(self, node: Node, source: Array | None, made: tuple[Array, ...]) -> tuple[Array, ...]:
        assert source is not None
        if node.operator == "Cast":  # all are floats here
            if node.attributes["to"] != FLOAT:
                raise Untaped("a conversion of what is not known ahead")
            return (source,)
        if all(np.may_share_memory(each, self._block.memory) for each in made):
            return made
        if node.operator not in ("Flatten", "Reshape"):
            raise Untaped(f"{node.operator} of numbers that do not lie in a row")
        return (self._compact(source).reshape(made[0].shape),)

    def _step(self, node: Node, inputs: list[Value | None], made: Array) -> Array:
        """Add what computes ``made``; returns where that will be."""
        operator = node.operator
        if operator in ("Gemm", "MatMul"):
            return self._product(node, inputs, made)
        if operator == "Concat":
            return self._joined(node, inputs, made)
        if operator == "Gather":
            return self._gathered(node, inputs, made)
        operands = [None if value is None else self._placed(value) for value in inputs]
        if operator in REDUCING:
            return self._reduced(node, operands[0], made)
        to = self._block.take(made.shape)
        if operator == "Clip":
            low, high = (*operands[1:], None, None)[:2]
            low = self._scalar(-math.inf) if low is None else low
            high = self._scalar(math.inf) if high is None else high
            operands, kind = [operands[0], low, high], Kind.CLIP
        elif operator == "Not":
            operands, kind = [self._scalar(1.0), operands[0]], Kind.SUB
        else:
            kind = BY_ELEMENT[operator]
        self._block.by_element(kind, to, *(np.broadcast_to(x, to.shape) for x in operands if x is not None))
        return to

    def _scalar(self, value: float) -> Floats:
        return self._block.put(np.array(value))

    def _compact(self, source: Array) -> Floats:
        """A copy that lies in a row."""
        to = self._block.take(source.shape)
        self._block.by_element(Kind.COPY, to, source)
        return to

    def _reduced(self, node: Node, x: Array | None, made: Array) -> Array:
        assert x is not None
        if node.operator == "ArgMax":
            axes = {node.attributes.get("axis", 0) % x.ndim}
        else:
            axes = {axis % x.ndim for axis in node.attributes.get("axes") or range(x.ndim)}
            if len(node.inputs) > 1:
                raise Untaped("axes that are an input")
        strides, to = strides_of(x), self._block.take(made.shape)
        parts = [[axis for axis in range(x.ndim) if (axis in axes) is over] for over in (False, True)]
        shapes, walks = zip(
            *(merged([x.shape[i] for i in part], [[strides[i] for i in part]], DIMENSIONS // 2) for part in parts),
            strict=True,
        )
        a = Place(self._block.at(x), (*walks[0][0], *walks[1][0]))
        self._block.add(REDUCING[node.operator], (*shapes[0], *shapes[1]), to, a)
        return to

    def _joined(self, node: Node, inputs: list[Value | None], made: Array) -> Array:
        """Parts lie one behind the other: the axis along which they are joined is the first one in the block."""
        axis, begin = node.attributes["axis"], 0
        joined = self._block.take(np.moveaxis(made, axis, 0).shape)
        for value in inputs:
            assert value is not None
            moved = np.moveaxis(value.array, axis, 0)
            part, begin = joined[begin : begin + len(moved)], begin + len(moved)
            if value.known:
                part[...] = moved  # nothing else is ever written there
            else:
                self._block.by_element(Kind.COPY, part, moved)
        return np.moveaxis(joined, 0, axis)

    def _gathered(self, node: Node, inputs: list[Value | None], made: Array) -> Array:
        source, places = inputs
        assert source is not None and places is not None
        data, axis = self._placed(source), node.attributes.get("axis", 0)
        to = self._block.take(made.shape)
        if places.known:
            offsets = sum(
                np.arange(length).reshape([-1 if i == at else 1 for i in range(data.ndim)]) * stride
                for at, (length, stride) in enumerate(zip(data.shape, strides_of(data), strict=True))
            )
            table = np.take(np.asarray(offsets), places.array, axis).astype(np.int32)
            self._block.add(
                Kind.TAKE, (1, 1, 1, table.size), to, Place(self._block.at(data)),
                Place(self._block.at(self._block.put_bits(table))),
            )  # fmt: skip
            return to
        if places.array.size != 1:
            raise Untaped("several places that are not known ahead")
        first = np.take(strides_of(data), axis)
        shape, (walk,) = merged(*_without(axis, data), DIMENSIONS)
        self._block.add(
            Kind.PICK, shape, to, Place(self._block.at(data), walk), Place(self._block.at(places.array)),
            Place(0, (int(first), 0, 0, 0)),
        )  # fmt: skip
        return to

    # -- products ------------------------------------------------------------------------------------------------

    def _product(self, node: Node, inputs: list[Value | None], made: Array) -> Array:
        get = node.attributes.get
        left, right, *rest = inputs
        assert left is not None and right is not None
        if get("alpha", 1.0) != 1.0 or get("beta", 1.0) != 1.0 or get("transA", 0):
            raise Untaped("a scaled product, or one of a turned left side")
        matrix = right.array.T if get("transB", 0) else right.array
        bias = self._placed(rest[0]) if rest and rest[0] is not None else self._scalar(0.0)
        rows = self._placed(left)
        if rows.ndim < 2 or matrix.ndim < 2:
            raise Untaped("a product of a vector")
        to, terms, columns = self._block.take(made.shape), rows.shape[-1], matrix.shape[-1]
        offset = np.broadcast_to(bias, (1, columns))
        c = Place(self._block.at(bias), (0, 0, 0, strides_of(offset)[1]))
        if math.prod(made.shape[:-1]) == 1 and right.known and np.count_nonzero(matrix) < FEW * matrix.size:
            a = Place(self._block.at(rows), (0, 0, strides_of(rows)[-1], 0))
            weights = self._block.put_bits(*_sparse(matrix.reshape(terms, columns)))
            self._block.add(Kind.SPARSE, (1, 1, terms, columns), to, a, Place(self._block.at(weights)), c)
            return to
        if math.prod(made.shape[:-1]) > 1 and bias.size > 1:
            raise Untaped("a bias of many rows")
        placed = self._block.put(matrix) if right.known else matrix
        if strides_of(placed)[-1] != 1:
            placed = self._compact(placed)
        many = made.shape[:-1]
        each = np.broadcast_to(placed[..., None, :, :], (*many, terms, columns))
        shape, walks = merged(many, [strides_of(np.broadcast_to(rows, (*many, terms)))[:-1], strides_of(each)[:-2]], 2)
        a = Place(self._block.at(rows), (*walks[0], strides_of(rows)[-1], 0))
        b = Place(self._block.at(placed), (*walks[1], strides_of(placed)[-2], 1))
        self._block.add(Kind.PRODUCT, (*shape, terms, columns), to, a, b, c)
        return to


def _without(axis: int, data: Array) -> tuple[list[int], list[list[int]]]:
    """Shape and strides of all axes but one."""
    kept = [i for i in range(data.ndim) if i != axis % data.ndim]
    strides = strides_of(data)
    return [data.shape[i] for i in kept], [[strides[i] for i in kept]]


def _sparse(matrix: Array) -> tuple[Array, Array, Array]:
    """Where every column begins, then the terms of its weights, then the weights."""
    columns, terms = np.nonzero(matrix.T)
    begins = np.searchsorted(columns, np.arange(matrix.shape[1] + 1))
    return begins.astype(np.int32), terms.astype(np.int32), matrix[terms, columns].astype(np.float32)
