"""A KV cache in buffers that grow by doubling: appending writes in place, cropping moves an end mark.

``transformers`` concatenates, which copies the whole cache at every token.

Layers with a sliding window or chunks are kept like all others, from the first token on. ``transformers`` sizes a mask
by what the cache says it holds (``get_mask_sizes``) and windows it by absolute positions; only a cache that calls a
layer sliding has its masks cut to the window. So no layer here does: the mask spans all tokens, hides those outside the
window, and is exact at any width and behind any roll-back. The price is memory: a window of 4096 tokens in a context of
32768 holds eight times what it reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from transformers.cache_utils import Cache, DynamicLayer

from runtime.engine.kv_state import KVState, Layer
from runtime.engine.malloc import new_lasting

FIRST_CAPACITY = 256
"""Tokens a buffer holds at first."""
_NAMES = ("cache", "past_key_values")
"""What ``transformers`` calls a cache, and called it before."""


def capacity_for(tokens: int) -> int:
    """Room that a buffer of at least so many tokens has: a power of two."""
    return max(FIRST_CAPACITY, 1 << (tokens - 1).bit_length())


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One attention layer's keys and values.

    ``keys`` and ``values`` are views of the first tokens of the buffers, made when they are asked for: shape (batch,
    kv_heads, length, head_dim), None before the first token.
    """

    def __init__(self) -> None:
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self._length = 0
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def keys(self) -> torch.Tensor | None:
        return None if self._buffers is None else self.first(self._length)[0]

    @keys.setter
    def keys(self, keys: torch.Tensor | None) -> None:
        """What the class above sets at first."""

    @property
    def values(self) -> torch.Tensor | None:
        return None if self._buffers is None else self.first(self._length)[1]

    @values.setter
    def values(self, values: torch.Tensor | None) -> None:
        """What the class above sets at first."""

    def get_seq_length(self) -> int:
        """Tokens held."""
        return self._length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append, and return all keys and values."""
        end = self._length + key_states.shape[-2]
        keys, values = self._room(key_states, value_states, end)
        keys[..., self._length : end, :] = key_states
        values[..., self._length : end, :] = value_states
        self._length = end
        return self.first(end)

    def extend(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Room for more tokens behind those held, which the caller fills.

        Returns:
            The buffers of keys and values, shape (batch, kv_heads, capacity, head_dim), and the tokens held before.
        """
        assert self._buffers is not None, "a layer without buffers has no shape yet"
        before = self._length
        keys, values = self._room(*self._buffers, before + tokens)
        self._length = before + tokens
        return keys, values, before

    def crop_to(self, length: int) -> None:
        """Keep the first ``length`` tokens, all if there are fewer."""
        self._length = min(self._length, length)

    @property
    def shaped(self) -> bool:
        """Whether it has held a token, so that its shapes are known."""
        return self._buffers is not None

    def _room(self, keys: torch.Tensor, values: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        held = self._buffers
        if held is not None and held[0].shape[-2] >= end:
            return held
        grown = []
        for i, like in enumerate((keys, values)):
            buffer = new_lasting((*like.shape[:-2], capacity_for(end), like.shape[-1]), like.dtype, like.device)
            if held is not None:
                buffer[..., : self._length, :] = held[i][..., : self._length, :]
            grown.append(buffer)
        self._buffers = (grown[0], grown[1])
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        return self._buffers

    def first(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first ``length`` tokens' keys and values."""
        assert self._buffers is not None
        return self._buffers[0][..., :length, :], self._buffers[1][..., :length, :]


class GrowingCache(Cache):
    """The cache of a model of attention layers, batch 1. Its length is what every layer holds."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=GrowingLayer)

    @property
    def length(self) -> int:
        """Tokens that every layer holds; after an interrupted forward the layers may differ."""
        return min((layer.get_seq_length() for layer in self._growing), default=0)

    @property
    def _growing(self) -> list[GrowingLayer]:
        return cast(list[GrowingLayer], self.layers)

    def held(self, index: int) -> GrowingLayer | None:
        """A layer that can be extended in place; None if it never held a token."""
        layers = self._growing
        return layers[index] if index < len(layers) and layers[index].shaped else None

    def crop_to(self, length: int) -> None:
        """Keep the first ``length`` tokens in every layer. Buffers stay allocated."""
        for layer in self._growing:
            layer.crop_to(length)

    def copy_out(self, start: int, end: int) -> KVState:
        """A copy of the keys and values of tokens ``start`` to ``end``."""
        return KVState.copy_of((layer.first(end) for layer in self._growing), start)

    def append(self, layers: tuple[Layer, ...], length: int) -> None:
        """Add copies of the first ``length`` tokens' keys and values to every layer."""
        for index, (keys, values) in enumerate(layers):
            self.update(keys[..., :length, :], values[..., :length, :], index)


def cache_argument(forward: Callable[..., Any]) -> str:
    """What a module's ``forward`` calls its cache."""
    new, old = _NAMES
    return new if new in inspect.signature(forward).parameters else old


def cache_among(arguments: Mapping[str, Any]) -> GrowingCache | None:
    """The cache among the arguments of a forward; None if there is none, or one of another kind."""
    new, old = _NAMES
    cache = arguments.get(new, arguments.get(old))
    return cache if isinstance(cache, GrowingCache) else None
