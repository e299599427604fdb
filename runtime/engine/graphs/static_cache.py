"""A KV cache whose buffers stay where they are, so that a forward can be recorded once and replayed.

    buffers of a layer  [0 ...... length) [length ... length + n) [ ... window) [ ... capacity)
                         held              written by a forward    hidden        not looked at

A *fixed* forward takes the place of its tokens from a tensor, so no number of it changes from one to the next: it
writes by index and attends over the first ``window`` rows, of which the causal mask hides those behind its own tokens.
Any other forward attends over views that end with its own tokens, as behind ``GrowingCache``.

What is held is one number for all layers, and moves when a forward is over. So a forward that fails changes nothing,
and cropping costs nothing. Rows behind ``length`` are zeros or of tokens taken back: numbers, which a mask can hide
(it could not hide NaN).

As in ``GrowingCache`` every layer keeps every token, windowed ones too, and the mask does the windowing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from transformers.cache_utils import Cache, DynamicLayer

from runtime.engine.kv_cache import FIRST_CAPACITY, capacity_for
from runtime.engine.kv_state import KVState, Layer


class Fixed(NamedTuple):
    """What a fixed forward is told.

    Attributes:
        start: Tokens held before, int64, no dimension, on the device.
        positions: Places of the tokens that are forwarded, shape (n,) int64, on the device.
        window: Rows that are attended over.
    """

    start: torch.Tensor
    positions: torch.Tensor
    window: int


@dataclass
class _Place:
    """Where the next tokens go, the same for all layers of a cache.

    Attributes:
        length: Tokens held.
        capacity: Tokens that every buffer has room for.
        fixed: Of the fixed forward that is going on; None = none is.
    """

    length: int = 0
    capacity: int = FIRST_CAPACITY
    fixed: Fixed | None = None


class StaticLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One attention layer's keys and values, shape (batch, kv_heads, capacity, head_dim).

    Args:
        place: The cache's.
    """

    def __init__(self, place: _Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def is_compileable(self) -> bool:  # type: ignore[override]
        """Whether a mask is needed at width 1 too: rows behind the token are there."""
        return self._place.fixed is not None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new tokens' keys and values, and return all that is attended over."""
        if self._buffers is None:
            self._buffers = (self._zeros(key_states), self._zeros(value_states))
        place = self._place
        if place.fixed is not None:
            keys, values = self.first(place.fixed.window)
            keys.index_copy_(2, place.fixed.positions, key_states)
            values.index_copy_(2, place.fixed.positions, value_states)
            return keys, values
        keys, values = self.first(place.length + key_states.shape[-2])
        keys[..., place.length :, :] = key_states
        values[..., place.length :, :] = value_states
        return keys, values

    def get_seq_length(self) -> Any:
        """Tokens held before the forward; of a fixed one a tensor."""
        fixed = self._place.fixed
        return self._place.length if fixed is None else fixed.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that are attended over, and the first of them."""
        fixed = self._place.fixed
        return (self._place.length + query_length if fixed is None else fixed.window), 0

    def first(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first ``length`` tokens' keys and values."""
        assert self._buffers is not None, "a layer without buffers has no shape yet"
        return self._buffers[0][..., :length, :], self._buffers[1][..., :length, :]

    def grow(self) -> None:
        """Move to buffers of the place's capacity."""
        if self._buffers is None:
            return
        held = self.first(self._place.length)
        self._buffers = (self._zeros(held[0]), self._zeros(held[1]))
        for grown, before in zip(self.first(self._place.length), held, strict=True):
            grown.copy_(before)

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros((*like.shape[:-2], self._place.capacity, like.shape[-1]))


class StaticCache(Cache):
    """Implements ``SequenceCache`` for a model of attention layers, batch 1.

    Attributes:
        moves: How often the buffers moved; what was recorded before is void then.
    """

    def __init__(self) -> None:
        self._place = _Place()
        super().__init__(layer_class_to_replicate=partial(StaticLayer, self._place))  # type: ignore[arg-type]
        self.moves = 0

    @property
    def length(self) -> int:
        return self._place.length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values, and return all that is attended over."""
        if self._place.fixed is None:
            self.reserve(self._place.length + key_states.shape[-2])
        found: tuple[torch.Tensor, torch.Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return found

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in all; needed before a fixed forward."""
        if tokens > self._place.capacity:
            self._place.capacity = capacity_for(tokens)
            self.moves += 1
            for layer in self._static:
                layer.grow()

    @contextmanager
    def fixed(self, fixed: Fixed) -> Iterator[None]:
        """Forwards within are fixed."""
        self._place.fixed = fixed
        try:
            yield
        finally:
            self._place.fixed = None

    def advance_to(self, length: int) -> None:
        """Hold what a forward wrote, up to ``length`` tokens in all."""
        self._place.length = length

    def crop_to(self, length: int) -> None:
        self._place.length = min(self._place.length, length)

    def copy_out(self, start: int, end: int) -> KVState:
        return KVState.copy_of((layer.first(end) for layer in self._static), start)

    def append(self, layers: tuple[Layer, ...], length: int) -> None:
        for index, (keys, values) in enumerate(layers):
            self.update(keys[..., :length, :], values[..., :length, :], index)
        self.advance_to(self.length + length)

    @property
    def _static(self) -> Sequence[StaticLayer]:
        return cast(list[StaticLayer], self.layers)
