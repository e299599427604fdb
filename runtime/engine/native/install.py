"""Putting the compiled kernels into a model: by module replacement, each replacement tried against the original first.

1. A norm, a gated MLP, an attention whose parts are there is replaced, if the replacement computes the same for random
   input. What is not of that form, or answers otherwise (a norm of a query, another way to turn), stays; so does
   attention whose scores or states are bounded (``BOUNDS``), or of which a part of each head may be turned.
2. Every linear layer whose weight lies on a grid of 4 or 8 bit is compressed, which loses nothing.
3. A layer that consists of such parts becomes one call, and so do all layers if they are called one behind the other.

Nothing is replaced on another device or in another dtype than fp32, or where there is no compiler.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from runtime.engine.native.blocks import Blocks, Form, blocks_of, stacked
from runtime.engine.native.chain import chain_layers
from runtime.engine.native.integers import FORMS, IntegerLinear, has_integers, rounded
from runtime.engine.native.layer import FusedLayer, fuse_layers
from runtime.engine.native.library import kernels
from runtime.engine.native.linear import BlockLinear
from runtime.engine.native.modules import FEW_ROWS, LARGEST_HEAD, CachedAttention, GatedMLP, Norm
from runtime.engine.native.panels import LANES
from runtime.engine.native.products import EXACT, Products
from runtime.engine.native.shared import Part, SharedProduct
from runtime.engine.native.trial import OTHERWISE, WIDTH, Passes, Trial, Verdicts, agree, answer_of, random

LOGGER = logging.getLogger(__name__)

QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
NEEDED = ("o_proj", "layer_idx", "scaling")
BOUNDS = ("attn_logit_softcapping", "clip_qkv")
"""Settings that bend or cut off attention's large scores or states, which random input need not reach."""
LOUD = 1000.0
"""Times that rows are as large where it is tried whether a gated MLP cuts off what is large."""
MOST_TRIED, TRIED_WIDTH = 11, 96
"""Rows up to which products are tried, more than the kernels take at once, and their width."""

Linear = nn.Linear | BlockLinear


def usable() -> bool:
    """Whether there are compiled kernels, and their products are torch's on this processor."""
    return kernels() is not None and _multiplies()


@torch.inference_mode()
def install(model: nn.Module, products: Products = EXACT, verdicts: Verdicts | None = None) -> int:
    """Replace what can be replaced in ``model``, in place.

    Args:
        model: On CPU in fp32; weights that are replaced are freed.
        products: How they are computed.
        verdicts: Of models that differ from this one in nothing but their weights; None = everything is tried.

    Returns:
        Modules replaced; 0 where kernels are not ``usable``.
    """
    if not usable() or not _suits(model):
        return 0
    replaced, verdicts = 0, verdicts or Verdicts()
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            tried = verdicts.of(f"{path}.{name}")
            made = (
                _norm(child, products.most_rows, tried)
                or _attention(child, products, tried)
                or _mlp(child, products, tried)
            )
            if made is not None:
                setattr(parent, name, made)
                replaced += 1
    replaced += compress_linears(model, products) + fuse_layers(model, verdicts)
    chain_layers(model, verdicts)
    for part in model.modules():
        if isinstance(part, BlockLinear):
            part.laid_out()  # by whoever loads, not by whoever decodes first
    return replaced


def compress_linears(module: nn.Module, products: Products = EXACT) -> int:
    """Replace every linear layer that can be compressed; returns how many, 0 where kernels are not usable."""
    if not usable() or not _suits(module):
        return 0
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            blocks = _blocks_of_layer(child, products)
            if blocks is not None:
                setattr(parent, name, products.layer(blocks, getattr(child, "bias", None)))
                replaced += 1
    return replaced


def back_to_floats(model: nn.Module) -> None:
    """Let all products of integers be products of floats with the same weights; wide forwards go back to the model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, IntegerLinear):
                made = BlockLinear(child.blocks, child.bias)
                made.laid_out()
                setattr(parent, name, made)
    for module in model.modules():
        if isinstance(module, Norm | GatedMLP | CachedAttention):
            module.most_rows = FEW_ROWS
        elif isinstance(module, FusedLayer):
            module.describe()


def _blocks_of_layer(layer: nn.Module, products: Products) -> Blocks | None:
    """The blocks of a linear layer that is to be replaced; None for any other module."""
    if type(layer) is BlockLinear:
        return None if products.layer is BlockLinear else layer.blocks
    if not isinstance(layer, nn.Linear | Conv1D) or type(layer) not in (nn.Linear, Conv1D):
        return None
    weight = layer.weight.detach()
    return products.compress(weight.t().contiguous() if isinstance(layer, Conv1D) else weight)


def _suits(model: nn.Module) -> bool:
    return all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())


def _norm(module: nn.Module, most_rows: int, passes: Passes) -> Norm | None:
    names = [name for name, _ in module.named_parameters()]
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if names != ["weight"] or not isinstance(eps, float) or isinstance(module, Norm | nn.LayerNorm):
        return None
    weight: torch.Tensor = module.weight.detach()  # type: ignore[operator]
    if weight.dim() != 1 or weight.shape[0] % LANES:
        return None
    for scale in (weight, weight + 1.0):  # Gemma's weights are offsets from 1
        made = Norm(module, scale, eps, most_rows)
        if passes(f"norm, {'as it is' if scale is weight else 'offset'}", partial(_answers_alike, made, module)):
            return made
    return None


def _answers_alike(made: Norm, module: nn.Module) -> bool:
    rows = random(1, WIDTH, made.weight.shape[0])
    return agree(answer_of(made, rows), answer_of(module, rows))


def _mlp(module: nn.Module, products: Products, passes: Passes) -> GatedMLP | None:
    gate_up = _linears(module, GATE_UP)
    if gate_up is None:
        return None
    width, shared = gate_up[0].in_features, share(module, GATE_UP, gate_up, products)
    gate_up.clear()  # their weights are in the shared one now
    gate, up = shared.sizes
    if gate != up or gate % LANES or not hasattr(module, "down_proj"):
        return None
    made = GatedMLP(module, shared, products.most_rows)

    def alike() -> bool:
        rows = random(1, WIDTH, width)
        both = torch.cat([rows, LOUD * rows], dim=1)
        got, expected = answer_of(made, both), answer_of(module, both)
        if got is None or expected is None or got.shape != expected.shape:
            return False
        return all(map(agree, got.chunk(2, dim=1), expected.chunk(2, dim=1)))

    return made if passes("gated MLP", alike) else None


def _attention(module: nn.Module, products: Products, passes: Passes) -> CachedAttention | None:
    qkv = _linears(module, QKV)
    if qkv is None:
        return None
    width, shared = qkv[0].in_features, share(module, QKV, qkv, products)
    qkv.clear()
    size = getattr(module, "head_dim", None)
    if not isinstance(size, int) or size % LANES or size > LARGEST_HEAD or any(n % size for n in shared.sizes):
        return None
    queries, keys, values = shared.sizes
    if keys != values or queries % keys or not all(hasattr(module, name) for name in NEEDED):
        return None

    def alike() -> bool:
        if _bounded(module) or _windowed(module):
            return False
        trial = Trial(module, module.layer_idx, keys // size, size, width)
        if trial.turns_parts(module):
            return False
        made = CachedAttention(module, shared, size, products.most_rows)
        return all(map(agree, trial.run(module), trial.run(made)))

    try:
        return CachedAttention(module, shared, size, products.most_rows) if passes("attention", alike) else None
    except OTHERWISE:
        return None


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


def share(module: nn.Module, names: Sequence[str], linears: Sequence[Linear], products: Products) -> SharedProduct:
    """Let linear layers of a module hand out parts of one product."""
    shared = SharedProduct(_joined(linears, products), [linear.out_features for linear in linears])
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


def _joined(linears: Sequence[Linear], products: Products) -> Linear:
    """One layer with the outputs of all."""
    blocks = [_blocks(linear, products) for linear in linears]
    biases = [linear.bias for linear in linears]
    bias = None
    if any(each is not None for each in biases):
        sizes = [linear.out_features for linear in linears]
        filled = [torch.zeros(size) if own is None else own for own, size in zip(biases, sizes, strict=True)]
        bias = nn.Parameter(torch.cat(filled), requires_grad=False)
    whole = [each for each in blocks if each is not None]
    if len(whole) == len(blocks) and (joined := stacked(whole)) is not None:
        return products.layer(joined, bias)
    weights = [linear.weight if isinstance(linear, nn.Linear) else linear.blocks.weight() for linear in linears]
    wide = nn.Linear(weights[0].shape[1], 1, bias=False)
    wide.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    wide.out_features = wide.weight.shape[0]
    if bias is not None:
        wide.bias = bias
    return wide


def _blocks(linear: Linear, products: Products) -> Blocks | None:
    return linear.blocks if isinstance(linear, BlockLinear) else products.compress(linear.weight.detach())


@cache
def _multiplies() -> bool:
    """Whether the compiled product of every form is torch's, on this processor."""
    return all(_agrees(BlockLinear, form, random(MOST_TRIED, TRIED_WIDTH)) for form in Form)


@cache
def multiplies_integers() -> bool:
    """Whether there are kernels that multiply integers, and their products are torch's, on this processor."""
    if not usable() or not has_integers():
        return False
    return all(_agrees(IntegerLinear, form, rounded(random(MOST_TRIED, TRIED_WIDTH))) for form in FORMS)


def _agrees(layer: type[BlockLinear], form: Form, rows: torch.Tensor) -> bool:
    """Whether a layer's products are torch's, for every number of rows that the kernel takes at once."""
    blocks = blocks_of(random(2 * LANES + 7, TRIED_WIDTH), form)
    tried, expected = layer(blocks), torch.nn.functional.linear(rows, blocks.weight())
    if all(agree(tried(rows[:count]), expected[:count]) for count in range(1, MOST_TRIED + 1)):
        return True
    LOGGER.warning("a compiled product (%s) is not torch's: it is not used", layer.kernel)
    return False
