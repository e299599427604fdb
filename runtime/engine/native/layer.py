"""A layer as one call of the kernels, where it is norm, attention, norm, gated MLP, each half added to the states.

Thirty layers of ten calls each cost more time than their sums: with products of integers, Python took half of a
forward.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import torch
from torch import nn

from runtime.engine.kv_cache import GrowingCache, cache_among
from runtime.engine.native import team
from runtime.engine.native.integers import IntegerLinear
from runtime.engine.native.library import kernels
from runtime.engine.native.linear import BlockLinear
from runtime.engine.native.modules import FEW_ROWS, CachedAttention, GatedMLP, Norm
from runtime.engine.native.trial import OTHERWISE, Passes, Trial, Verdicts, agree

PARTS = {"input_layernorm": Norm, "self_attn": CachedAttention, "post_attention_layernorm": Norm, "mlp": GatedMLP}
"""Children of a layer that can be one call."""


class _Linear(ctypes.Structure):
    """As in ``layer.c``."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("width", ctypes.c_long),
        ("outputs", ctypes.c_long),
        ("kind", ctypes.c_int),
        ("integers", ctypes.c_int),
    )


class _Layer(ctypes.Structure):
    """As in ``layer.c``."""

    _fields_ = (
        *((name, _Linear) for name in ("qkv", "out", "gate_up", "down")),
        ("first_norm", ctypes.c_void_p),
        ("second_norm", ctypes.c_void_p),
        ("first_eps", ctypes.c_float),
        ("second_eps", ctypes.c_float),
        *((name, ctypes.c_long) for name in ("heads", "groups", "size")),
        ("scale", ctypes.c_float),
    )


class Follow(Protocol):
    """Layers of which the first computes for all, see ``chain.py``."""

    def has_answered(self, states: torch.Tensor, layer: FusedLayer) -> bool:
        """Whether the states are what was computed for all."""

    def answer(
        self, layer: FusedLayer, states: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], cache: GrowingCache
    ) -> torch.Tensor | None:
        """What the layers make of states; None if ``layer`` computes for itself."""


class FusedLayer(nn.Module):
    """A layer of which narrow forwards behind a cache are one call; others are left to the layer itself.

    It knows its parts by the addresses of their tensors: they stay where they are, and whoever replaces a part calls
    ``describe``.

    Args:
        inner: The layer it stands for, with children as in ``PARTS`` over compressed weights.
        answers_tuple: Whether it answers with a tuple of the states alone.

    Attributes:
        index: Of the layer in a cache.
        width: Of the states.
        address: Of its description for ``layer.c``.
        chain: Whom it belongs to, see ``chain.py``; None = it computes for itself.

    Raises:
        TypeError: If a product of it is not over compressed weights.
    """

    def __init__(self, inner: nn.Module, answers_tuple: bool = False) -> None:
        super().__init__()
        self.inner, self._answers_tuple = inner, answers_tuple
        attention: CachedAttention = inner.self_attn  # type: ignore[assignment]
        self.index, self._decode = attention.layer, kernels().decode_layer
        self.width: int = attention.product.linear.in_features  # type: ignore[assignment]
        self.chain: Follow | None = None
        self.describe()

    def forward(self, hidden_states: torch.Tensor, *others: Any, **arguments: Any) -> Any:
        """As the layer it stands for.

        Raises:
            MemoryError: If there is no memory for what lies between its parts.
        """
        if self.chain is not None and self.chain.has_answered(hidden_states, self):
            return (hidden_states,) if self._answers_tuple else hidden_states
        cache = cache_among(arguments)
        layer = cache.held(self.index) if cache is not None and not others else None
        batch, rows, _ = hidden_states.shape
        turn = arguments.get("position_embeddings")
        if cache is None or layer is None or turn is None or batch != 1 or rows > FEW_ROWS:
            return self.inner(hidden_states, *others, **arguments)
        states, cosine, sine = hidden_states.contiguous(), turn[0].contiguous(), turn[1].contiguous()
        if self.chain is not None:
            answer = self.chain.answer(self, states, (cosine, sine), cache)
            if answer is not None:
                return (answer,) if self._answers_tuple else answer
        keys, values, length = layer.extend(rows)
        result = torch.empty_like(states)
        failed = self._decode(
            self.address, states.data_ptr(), result.data_ptr(), cosine.data_ptr(), sine.data_ptr(), keys.data_ptr(),
            values.data_ptr(), rows, length, keys.shape[-2], team.size(),
        )  # fmt: skip
        if failed:
            raise MemoryError("no memory for a layer's states")
        return (result,) if self._answers_tuple else result

    def describe(self) -> None:
        """Look again at the parts of the layer, of which some were replaced.

        Raises:
            TypeError: As at first.
        """
        self._made = _described(self.inner)
        self.address = ctypes.addressof(self._made)


def fuse_layers(model: nn.Module, verdicts: Verdicts) -> int:
    """Make one call of every layer that can be; returns how many."""
    fused = 0
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            made = _fused(child, verdicts.of(f"{path}.{name}"))
            if made is not None:
                setattr(parent, name, made)
                fused += 1
    return fused


def _fused(layer: nn.Module, passes: Passes) -> FusedLayer | None:
    children = dict(layer.named_children())
    if {name: type(child) for name, child in children.items()} != PARTS:
        return None
    attention: CachedAttention = layer.self_attn  # type: ignore[assignment]
    width = attention.product.linear.in_features
    if not isinstance(width, int):
        return None

    def trial() -> Trial:
        return Trial(layer, attention.layer, attention.groups, attention.size, width)

    def answers_tuple() -> bool:
        alone = trial()
        alone.run(layer)
        return alone.answered_tuple

    def alike() -> bool:
        both = trial()
        return all(map(agree, both.run(made), both.run(layer)))

    try:
        made = FusedLayer(layer, passes("layer answers with a tuple", answers_tuple))
        return made if passes("layer", alike) else None
    except OTHERWISE:
        return None


def _described(layer: nn.Module) -> _Layer:
    """The layer for ``layer.c``; what it points to belongs to the layer's children."""
    first: Norm = layer.input_layernorm  # type: ignore[assignment]
    second: Norm = layer.post_attention_layernorm  # type: ignore[assignment]
    attention: CachedAttention = layer.self_attn  # type: ignore[assignment]
    mlp: GatedMLP = layer.mlp  # type: ignore[assignment]
    return _Layer(
        _linear(attention.product.linear),
        _linear(attention.inner.o_proj),
        _linear(mlp.product.linear),
        _linear(mlp.inner.down_proj),
        first.weight.data_ptr(),
        second.weight.data_ptr(),
        first.eps,
        second.eps,
        attention.heads,
        attention.groups,
        attention.size,
        attention.scale,
    )


def _linear(layer: object) -> _Linear:
    if not isinstance(layer, BlockLinear):
        raise TypeError(f"expected a product over compressed weights, got {type(layer).__name__}")
    bias = None if layer.bias is None else layer.bias.data_ptr()
    integers = isinstance(layer, IntegerLinear)
    return _Linear(*layer.places, bias, layer.in_features, layer.out_features, layer.form, integers)
