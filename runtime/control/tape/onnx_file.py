"""Reading ONNX files: the graph, its constants and its nodes, without the library (which a device need not have).

ONNX files are protobuf messages: numbered fields, each a whole number, 4 or 8 bytes, or a length and as many bytes.
Field numbers are those of ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

DTYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}
"""Of ONNX's numbers for types, those that policies have."""
_WHOLE, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class UnreadableGraph(Exception):
    """The file is damaged, or has something in it that is not read here."""


@dataclass(frozen=True)
class Node:
    """An operation.

    Attributes:
        operator: Its name in ONNX.
        inputs: Names of what it reads; an empty one is left out.
        outputs: Names of what it makes.
        attributes: By name: int, float, bytes, array, or list of int or float.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass
class Graph:
    """Nodes in an order in which they can be run, and constants by name."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)


def read_graph(data: bytes) -> Graph:
    """The graph of an ONNX file.

    Raises:
        UnreadableGraph: If it is none, or of types or operator sets that are not read here.
    """
    try:
        return _graph(_only(memoryview(data), 7))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise UnreadableGraph(str(error)) from error


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field; numbers as ints, all else as bytes."""
    at = 0
    while at < len(data):
        key, at = _whole(data, at)
        kind = key & 7
        if kind == _WHOLE:
            value: Any
            value, at = _whole(data, at)
        else:
            length = {_EIGHT: 8, _FOUR: 4}.get(kind, 0)
            if kind == _BYTES:
                length, at = _whole(data, at)
            elif not length:
                raise ValueError(f"a field of kind {kind}")
            value, at = data[at : at + length], at + length
            if len(value) != length:
                raise ValueError("the file is cut short")
        yield key >> 3, value


def _whole(data: memoryview, at: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _wholes(value: Any) -> list[int]:
    """A repeated whole number: one, or several packed together."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _whole(value, at)
        numbers.append(_signed(number))
    return numbers


def _only(data: memoryview, number: int) -> memoryview:
    for each, value in _fields(data):
        if each == number:
            return value  # type: ignore[no-any-return]
    raise ValueError("there is no graph in it")


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8")


def _graph(data: memoryview) -> Graph:
    graph = Graph()
    for number, value in _fields(data):
        if number == 1:
            graph.nodes.append(_node(value))
        elif number == 5:
            name, array = _tensor(value)
            graph.constants[name] = array
    return graph


def _node(data: memoryview) -> Node:
    inputs, outputs, operator, attributes = [], [], "", {}
    for number, value in _fields(data):
        if number == 1:
            inputs.append(_text(value))
        elif number == 2:
            outputs.append(_text(value))
        elif number == 4:
            operator = _text(value)
        elif number == 5:
            name, read = _attribute(value)
            attributes[name] = read
        elif number == 7 and len(value):
            operator = f"{_text(value)}.{operator}"
    return Node(operator, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: memoryview) -> tuple[str, Any]:
    name, value = "", cast(Any, None)
    lists: dict[int, list[Any]] = {7: [], 8: []}
    for number, read in _fields(data):
        if number == 1:
            name = _text(read)
        elif number == 2:
            value = float(np.frombuffer(read, "<f4")[0])
        elif number == 3:
            value = _signed(read)
        elif number == 4:
            value = bytes(read)
        elif number == 5:
            value = _tensor(read)[1]
        elif number == 7:
            lists[7] += np.frombuffer(read, "<f4").tolist()
        elif number == 8:
            lists[8] += _wholes(read)
    return name, (lists[7] or lists[8]) if value is None else value


def _tensor(data: memoryview) -> tuple[str, Array]:
    shape: list[int] = []
    name, kind, raw, numbers = "", 0, None, list[Any]()
    for number, value in _fields(data):
        if number == 1:
            shape += _wholes(value)
        elif number == 2:
            kind = value
        elif number == 4:
            numbers += np.frombuffer(value, "<f4").tolist()
        elif number in (5, 7):
            numbers += _wholes(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = value
        elif number == 10:
            numbers += np.frombuffer(value, "<f8").tolist()
        elif number == 14 and value:
            raise ValueError(f"the weights of {name or 'a tensor'} lie in another file")
    dtype = np.dtype(DTYPES[kind]).newbyteorder("<")
    array = np.array(numbers, dtype) if raw is None else np.frombuffer(raw, dtype)
    return name, array.reshape(shape)
