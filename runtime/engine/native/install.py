"""Putting the compiled kernels into a model: by module replacement, each replacement tried against the original first.

1. A norm, a gated MLP, an attention whose parts are there is replaced, if the replacement computes the same for random
   input. What is not of that form, or answers otherwise (a norm of a query, another way to turn), stays; so does
   attention whose scores or states are bounded (``BOUNDS``).
2. Every linear layer whose weight lies on a grid of 4 or 8 bit is compressed, which loses nothing.

Nothing is replaced on another device or in another dtype than fp32, or where there is no compiler.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from runtime.engine.kv_cache import GrowingCache
from runtime.engine.native.blocks import Blocks, Form, blocks_of, exact, stacked
from runtime.engine.native.library import kernels
from runtime.engine.native.linear import BlockLinear
from runtime.engine.native.modules import LARGEST_HEAD, CachedAttention, GatedMLP, Norm
from runtime.engine.native.shared import Part, SharedProduct

LOGGER = logging.getLogger(__name__)

QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
NEEDED = ("o_proj", "layer_idx", "scaling")
BOUNDS = ("attn_logit_softcapping", "clip_qkv")
"""Settings that bend or cut off attention's large scores or states, which random input need not reach."""
LOUD = 1000.0
"""Times that rows are as large where it is tried whether a gated MLP cuts off what is large."""
LANES = 16
"""Widths of heads, norms and gates must be multiples of this."""
TOLERANCE = 1e-4
"""Part of the spread of an answer by which a replacement may differ; rounding takes 1e-6."""
PREFIX, WIDTH = 7, 3
"""Tokens in the cache and behind it, where attention is tried."""
TILE_ROWS = 8
"""Rows that the product takes at once."""

_OTHERWISE = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""What a module raises that wants to be called otherwise, or is made otherwise."""

Compress = Callable[[torch.Tensor], Blocks | None]
Linear = nn.Linear | BlockLinear


def usable() -> bool:
    """Whether there are compiled kernels, and their products are torch's on this processor."""
    return kernels() is not None and _multiplies()


@torch.inference_mode()
def install(model: nn.Module, compress: Compress | None = exact) -> int:
    """Replace what can be replaced in ``model``, in place.

    Args:
        model: On CPU in fp32; weights that are replaced are freed.
        compress: Makes blocks of a weight, or None; None = no weight is compressed.

    Returns:
        Modules replaced; 0 where kernels are not ``usable``.
    """
    if not usable() or not _suits(model):
        return 0
    compress = compress or _as_it_is
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            made = _norm(child) or _attention(child, compress) or _mlp(child, compress)
            if made is not None:
                setattr(parent, name, made)
                replaced += 1
    return replaced + compress_linears(model, compress)


def compress_linears(module: nn.Module, compress: Compress = exact) -> int:
    """Replace every linear layer that can be compressed; returns how many, 0 where kernels are not usable."""
    if not usable() or not _suits(module):
        return 0
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.Linear | Conv1D) or type(child) not in (nn.Linear, Conv1D):
                continue
            weight = child.weight.detach()
            blocks = compress(weight.t().contiguous() if isinstance(child, Conv1D) else weight)
            if blocks is not None:
                setattr(parent, name, BlockLinear(blocks, child.bias))
                replaced += 1
    return replaced


def _as_it_is(weight: torch.Tensor) -> None:
    """No blocks."""


def _suits(model: nn.Module) -> bool:
    return all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())


def _norm(module: nn.Module) -> Norm | None:
    names = [name for name, _ in module.named_parameters()]
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if names != ["weight"] or not isinstance(eps, float) or isinstance(module, Norm | nn.LayerNorm):
        return None
    weight: torch.Tensor = module.weight.detach()  # type: ignore[operator]
    if weight.dim() != 1 or weight.shape[0] % LANES:
        return None
    rows = _random(1, WIDTH, weight.shape[0])
    expected = _answer(module, rows)
    for scale in (weight, weight + 1.0):  # Gemma's weights are offsets from 1
        made = Norm(module, scale, eps)
        if _agree(_answer(made, rows), expected):
            return made
    return None


def _mlp(module: nn.Module, compress: Compress) -> GatedMLP | None:
    gate_up = _linears(module, GATE_UP)
    if gate_up is None:
        return None
    shared = share(module, GATE_UP, gate_up, compress)
    gate, up = shared.sizes
    if gate != up or gate % LANES or not hasattr(module, "down_proj"):
        return None
    rows = _random(1, WIDTH, gate_up[0].in_features)
    made = GatedMLP(module, shared)
    tried = (rows, LOUD * rows)
    return made if all(_agree(_answer(made, each), _answer(module, each)) for each in tried) else None


def _attention(module: nn.Module, compress: Compress) -> CachedAttention | None:
    qkv = _linears(module, QKV)
    if qkv is None:
        return None
    shared = share(module, QKV, qkv, compress)
    size = getattr(module, "head_dim", None)
    if not isinstance(size, int) or size % LANES or size > LARGEST_HEAD or any(n % size for n in shared.sizes):
        return None
    if shared.sizes[1] != shared.sizes[2] or not all(hasattr(module, name) for name in NEEDED):
        return None
    try:
        if _bounded(module) or _windowed(module):
            return None
        trial = _Trial(module, shared.sizes[1] // size, size, qkv[0].in_features)
        made = CachedAttention(module, shared, size)
        expected, got = trial.run(module), trial.run(made)
    except _OTHERWISE:
        return None
    return made if all(map(_agree, got, expected)) else None


def _bounded(module: nn.Module) -> bool:
    """Whether scores or states are bounded somewhere."""
    owners = (module, getattr(module, "config", None))
    return any(getattr(owner, name, None) is not None for owner in owners for name in BOUNDS)


def _windowed(module: nn.Module) -> bool:
    """Whether a layer sees a part of the text only; its mask says so, and the module's or the model's settings."""
    config, index = getattr(module, "config", None), module.layer_idx
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[index] != "full_attention":
        return True
    window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    return window is not None or getattr(config, "attention_chunk_size", None) is not None


class _Trial:
    """One call of an attention module behind a random cache.

    Args:
        module: The module.
        groups: Heads of keys.
        size: Numbers of a head.
        width: Of the states.
    """

    def __init__(self, module: nn.Module, groups: int, size: int, width: int) -> None:
        self._layer: int = module.layer_idx  # type: ignore[assignment]
        self._cache = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
        self._prefix = _random(2, 1, groups, PREFIX, size)
        self._states = _random(1, WIDTH, width)
        self._turn = (_random(1, WIDTH, size), _random(1, WIDTH, size).neg())
        later = torch.arange(PREFIX + WIDTH)[None, :] > PREFIX + torch.arange(WIDTH)[:, None]
        self._mask = torch.zeros(1, 1, WIDTH, PREFIX + WIDTH).masked_fill(later, float("-inf"))

    def run(self, module: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Answer, and the keys and values left in the cache."""
        cache = GrowingCache()
        cache.update(self._prefix[0], self._prefix[1], self._layer)
        arguments: dict[str, Any] = {"attention_mask": self._mask, "position_embeddings": self._turn}
        answer = module(hidden_states=self._states, **{self._cache: cache}, **arguments)[0]
        layer = cache.held(self._layer)
        assert layer is not None and layer.keys is not None and layer.values is not None, "the prefix is held"
        return answer, layer.keys, layer.values


def share(module: nn.Module, names: Sequence[str], linears: Sequence[Linear], compress: Compress) -> SharedProduct:
    """Let linear layers of a module hand out parts of one product."""
    shared = SharedProduct(_joined(linears, compress), [linear.out_features for linear in linears])
    for index, name in enumerate(names):
        setattr(module, name, Part(shared, index))
    module.add_module(f"shared_{names[0]}", shared)
    return shared


def _linears(module: nn.Module, names: Sequence[str]) -> list[Linear] | None:
    """The linear layers of these names, if all are there and read rows of one width."""
    found = [getattr(module, name, None) for name in names]
    linears = [layer for layer in found if isinstance(layer, Linear) and type(layer) in (nn.Linear, BlockLinear)]
    widths = {layer.in_features for layer in linears}
    return linears if len(linears) == len(names) and len(widths) == 1 else None


def _joined(linears: Sequence[Linear], compress: Compress) -> nn.Linear | BlockLinear:
    """One layer with the outputs of all."""
    blocks = [_blocks(linear, compress) for linear in linears]
    biases = [linear.bias for linear in linears]
    bias = None
    if any(each is not None for each in biases):
        sizes = [linear.out_features for linear in linears]
        filled = [torch.zeros(size) if own is None else own for own, size in zip(biases, sizes, strict=True)]
        bias = nn.Parameter(torch.cat(filled), requires_grad=False)
    whole = [each for each in blocks if each is not None]
    if len(whole) == len(blocks) and (joined := stacked(whole)) is not None:
        return BlockLinear(joined, bias)
    weights = [linear.weight if isinstance(linear, nn.Linear) else linear.dequantised() for linear in linears]
    wide = nn.Linear(weights[0].shape[1], 1, bias=False)
    wide.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    wide.out_features = wide.weight.shape[0]
    if bias is not None:
        wide.bias = bias
    return wide


def _blocks(linear: Linear, compress: Compress) -> Blocks | None:
    return linear.blocks if isinstance(linear, BlockLinear) else compress(linear.weight.detach())


def _answer(module: nn.Module, rows: torch.Tensor) -> torch.Tensor | None:
    """What a module makes of rows; None if it is called otherwise, or answers with something else."""
    try:
        answer = module(rows)
    except _OTHERWISE:
        return None
    return answer if isinstance(answer, torch.Tensor) else None


def _agree(got: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if got is None or expected is None or got.shape != expected.shape:
        return False
    return bool((got - expected).abs().max() <= TOLERANCE * (expected.max() - expected.min()))


def _random(*shape: int) -> torch.Tensor:
    """Normal numbers, always the same; the global generator stays where it is."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@cache
def _multiplies() -> bool:
    """Whether the compiled product of every form is torch's, on this processor."""
    weight, rows = _random(7, 96), _random(2 * TILE_ROWS + 3, 96)
    for form in Form:
        layer = BlockLinear(blocks_of(weight, form))
        plain = torch.nn.functional.linear(rows, layer.blocks.weight())
        if not (_agree(layer(rows), plain) and _agree(layer.dequantised(), layer.blocks.weight())):
            LOGGER.warning("a compiled product is not torch's: the kernels are not used")
            return False
    return True
