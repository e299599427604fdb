"""The block of memory that a tape works on, and its steps: plain records that compiled code reads."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.control.tape.onnx_file import Array

DIMENSIONS = 4
"""Of a tensor, once those of length 1 are left out and neighbours are merged."""
_ALIGNED = 8
"""Tensors begin at multiples of so many floats."""

Floats = npt.NDArray[np.float32]


class Untaped(Exception):
    """The graph does something that a tape cannot: another way to run it is needed."""


class Kind(enum.IntEnum):
    """What a step does; as in ``runtime/engine/native/decisions.c``."""

    COPY = 0
    EXP = 1
    LOG = 2
    SIGMOID = 3
    TANH = 4
    RELU = 5
    ADD = 6
    SUB = 7
    MUL = 8
    DIV = 9
    GREATER = 10
    CLIP = 11
    WHERE = 12
    TRUTHS = 13
    TAKE = 14
    PICK = 15
    LARGEST = 16
    LARGEST_AT = 17
    MEAN = 18
    PRODUCT = 19
    SPARSE = 20
    WHOLE = 21


class Place(NamedTuple):
    """Where an operand lies: offset and strides, in floats."""

    at: int = 0
    strides: tuple[int, ...] = (0,) * DIMENSIONS


NOWHERE = Place()
"""Of an operand that a step does not have."""


class Block:
    """Memory for constants, inputs and what steps make; tensors in it are numpy views.

    Attributes:
        memory: All of it, float32.
        used: How much of it is taken, in floats.
        steps: Records so far.
    """

    def __init__(self, floats: int) -> None:
        self.memory: Floats = np.zeros(floats, dtype=np.float32)
        self.used = 0
        self.steps: list[tuple[int, ...]] = []

    def take(self, shape: Sequence[int]) -> Floats:
        """Room for a new tensor.

        Raises:
            Untaped: If there is none.
        """
        size, begin = int(np.prod(shape)), -(-self.used // _ALIGNED) * _ALIGNED
        if begin + size > len(self.memory):
            raise Untaped(f"more than {len(self.memory)} numbers")
        self.used = begin + size
        return self.memory[begin : self.used].reshape(shape)

    def put(self, array: Array) -> Floats:
        """A constant, as floats."""
        placed = self.take(array.shape)
        placed[...] = array
        return placed

    def put_bits(self, *arrays: Array) -> Floats:
        """Numbers of 4 bytes each, one array behind the other, as they are."""
        bits = np.concatenate([array.ravel().view(np.float32) for array in arrays])
        placed = self.take(bits.shape)
        placed.view(np.int32)[...] = bits.view(np.int32)
        return placed

    def at(self, view: Array) -> int:
        """Where a view begins."""
        address: int = view.__array_interface__["data"][0]
        return (address - self.memory.ctypes.data) // self.memory.itemsize

    def add(
        self,
        kind: Kind,
        shape: Sequence[int],
        to: Array,
        a: Place,
        b: Place = NOWHERE,
        c: Place = NOWHERE,
    ) -> None:
        """One more step."""
        operands = (number for place in (a, b, c) for number in (place.at, *place.strides))
        self.steps.append((int(kind), *shape, self.at(to), *operands))

    def by_element(self, kind: Kind, to: Array, *operands: Array) -> None:
        """One more step that works element by element on operands of the shape of ``to``."""
        shape, strides = merged(to.shape, [strides_of(each) for each in operands], DIMENSIONS)
        self.add(kind, shape, to, *(Place(self.at(x), each) for x, each in zip(operands, strides, strict=True)))


def strides_of(view: Array) -> tuple[int, ...]:
    """In elements."""
    return tuple(stride // view.itemsize for stride in view.strides)


def merged(
    shape: Sequence[int], strides: Sequence[Sequence[int]], most: int
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The same dimensions as exactly ``most``: neighbours that all operands walk through in one go become one.

    Args:
        shape: Lengths.
        strides: Of every operand, one a dimension.
        most: Dimensions wanted; missing ones of length 1 stand in front.

    Raises:
        Untaped: If more are needed.
    """
    walks = list(zip(*strides, strict=True)) if strides else [()] * len(shape)
    kept: list[tuple[int, tuple[int, ...]]] = []
    for length, steps in zip(shape, walks, strict=True):
        if length == 1:
            continue
        if kept and all(outer == inner * length for outer, inner in zip(kept[-1][1], steps, strict=True)):
            kept[-1] = (kept[-1][0] * length, steps)
        else:
            kept.append((length, steps))
    if len(kept) > most:
        raise Untaped(f"more than {most} dimensions")
    kept = [(1, (0,) * len(strides))] * (most - len(kept)) + kept
    return tuple(length for length, _ in kept), [tuple(steps) for steps in zip(*(s for _, s in kept), strict=True)]
