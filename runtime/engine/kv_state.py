"""The KV of consecutive tokens, taken out of a model's cache: what the KV store keeps, shares and writes to disk.

    sequence   [0 ............ start ............ end .......)
    state                      [0 .. length)                      rows i belong to token start + i

Keys are stored as the model computed them, with their positions in them: a state is good only behind the very tokens it
was computed behind.

An engine that does not show its keys and values gives an *opaque* state: bytes of its own, of so many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from runtime.engine.malloc import new_lasting

Layer = tuple[torch.Tensor, torch.Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class KVState:
    """An immutable copy of the KV of consecutive tokens, in one allocation.

    Attributes:
        buffer: All numbers, flat; every tensor of ``layers`` is a view of it. Never changed.
        layers: Keys and values of every layer, each of shape (1, kv_heads, length, head_dim); none if it is opaque.
        opaque_tokens: Tokens that an opaque buffer covers; 0 if it is not opaque.
    """

    buffer: torch.Tensor
    layers: tuple[Layer, ...]
    opaque_tokens: int = 0

    @property
    def length(self) -> int:
        """Tokens covered."""
        return self.opaque_tokens or int(self.layers[0][0].shape[-2])

    @property
    def bytes(self) -> int:
        """Memory it takes."""
        return self.buffer.numel() * self.buffer.element_size()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of keys and values, layer after layer; of an opaque state its length. What ``of_buffer`` needs."""
        if self.opaque_tokens:
            return ((self.opaque_tokens,),)
        return tuple(tuple(part.shape) for layer in self.layers for part in layer)

    @classmethod
    def copy_of(cls, layers: Iterable[Layer], start: int = 0) -> KVState:
        """Copies of keys and values from token ``start`` on; all layers have one dtype and device."""
        parts = [part[..., start:, :] for layer in layers for part in layer]
        first = parts[0]
        buffer = new_lasting((sum(part.numel() for part in parts),), first.dtype, first.device)
        state = cls.of_buffer(buffer, [tuple(part.shape) for part in parts])
        for copy, part in zip((copy for layer in state.layers for copy in layer), parts, strict=True):
            copy.copy_(part)
        return state

    @classmethod
    def opaque(cls, buffer: torch.Tensor, tokens: int) -> KVState:
        """The state of ``tokens`` tokens that an engine keeps in bytes of its own, uint8, flat."""
        return cls(buffer, (), tokens)

    @classmethod
    def of_buffer(cls, buffer: torch.Tensor, shapes: Sequence[Shape]) -> KVState:
        """The state that a buffer holds.

        Raises:
            ValueError: If the buffer is not as long as the shapes say.
        """
        if len(shapes) == 1 and len(shapes[0]) == 1:
            return cls.opaque(buffer, shapes[0][0])
        sizes = [math.prod(shape) for shape in shapes]
        if sum(sizes) != buffer.numel() or len(shapes) % 2 or not shapes:
            raise ValueError(f"expected a KV buffer of {sum(sizes)} numbers, got {buffer.numel()}")
        views = [part.view(shape) for part, shape in zip(torch.split(buffer, sizes), shapes, strict=True)]
        return cls(buffer, tuple(zip(views[::2], views[1::2], strict=True)))


def total_length(states: Sequence[KVState]) -> int:
    """Tokens that consecutive states cover together."""
    return sum(state.length for state in states)
