"""Layers one behind the other as one call: the first computes for all, the others pass on what it answers.

Between two layers Python takes a third of the time of a layer's products, since those leave nothing of it in the
caches. What a model does between its layers is not known here, so a chain is tried: its model must answer with the same
bits as without it.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Sequence

import torch
from torch import nn

from runtime.engine.kv_cache import GrowingCache, cache_argument
from runtime.engine.native import team
from runtime.engine.native.layer import FusedLayer
from runtime.engine.native.library import kernels
from runtime.engine.native.trial import OTHERWISE, PREFIX, WIDTH, Passes, Verdicts, random

LOGGER = logging.getLogger(__name__)


class Chain:
    """Implements ``layer.Follow``.

    Args:
        layers: In the order in which a model calls them; each of them belongs to this chain from now on.
    """

    def __init__(self, layers: Sequence[FusedLayer]) -> None:
        self._layers = [weakref.ref(layer) for layer in layers]  # they hold the chain: a model goes when it is let go
        self._decode = kernels().decode_layers
        self._answer: torch.Tensor | None = None
        for layer in layers:
            layer.chain = self

    def has_answered(self, states: torch.Tensor, layer: FusedLayer) -> bool:
        """Whether these states are the whole chain's, handed on to one of its layers."""
        if self._answer is not states:
            return False
        if layer is self._layers[-1]():
            self._answer = None
        return True

    def answer(
        self, layer: FusedLayer, states: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], cache: GrowingCache
    ) -> torch.Tensor | None:
        """States (1, n, width) behind all layers; None if ``layer`` is not the first, or the cache is not even.

        Raises:
            MemoryError: If there is no memory for what lies between their parts.
            RuntimeError: If a layer gets something else than what was computed for all: their caches have moved on.
        """
        handed_on, self._answer = self._answer, None
        if layer is not self._layers[0]():
            if handed_on is not None:
                raise RuntimeError(
                    f"layer {layer.index} got other states than the layers before it answered: something came between "
                    "them after the model was opened (a hook?); put it there before, or set SPECPILOT_KERNELS=0"
                )
            return None
        layers = [each for each in (known() for known in self._layers) if each is not None]
        held, rows = [cache.held(each.index) for each in layers], states.shape[1]
        there = [each for each in held if each is not None]
        if len(there) < len(self._layers) or len({each.get_seq_length() for each in there}) > 1:
            return None
        rooms, count = [each.extend(rows) for each in there], len(there)
        pointers, longs = ctypes.c_void_p * count, ctypes.c_long * count
        result = torch.empty_like(states)
        failed = self._decode(
            pointers(*[each.address for each in layers]), count, states.data_ptr(), result.data_ptr(),
            turn[0].data_ptr(), turn[1].data_ptr(), pointers(*[keys.data_ptr() for keys, _, _ in rooms]),
            pointers(*[values.data_ptr() for _, values, _ in rooms]), rows, rooms[0][2],
            longs(*[keys.shape[-2] for keys, _, _ in rooms]), team.size(),
        )  # fmt: skip
        if failed:
            raise MemoryError("no memory for the states of layers")
        self._answer = result
        return result


def chain_layers(model: nn.Module, verdicts: Verdicts) -> int:
    """Make chains of the layers in ``model`` that are one call each; returns how many chains."""
    parts = [
        (f"{path}.{name}", owner, child)
        for path, owner in model.named_modules()
        for name, child in owner.named_children()
    ]
    return sum(_chained(owner, child, verdicts.of(path)) for path, owner, child in parts)


def _chained(owner: nn.Module, child: nn.Module, passes: Passes) -> bool:
    layers = [layer for layer in child.children() if isinstance(layer, FusedLayer)]
    if not isinstance(child, nn.ModuleList) or len(layers) != len(child) or len(layers) < 2:
        return False

    def alike() -> bool:
        chained = _tried(owner, layers)
        _alone(layers)
        return all(map(torch.equal, chained, _tried(owner, layers)))

    Chain(layers)
    try:
        right = passes("chain", alike)
    except OTHERWISE:
        LOGGER.debug("layers of %s cannot be tried as one call", type(owner).__name__, exc_info=True)
        right = False
    _alone(layers)
    if right:
        Chain(layers)
    return right


def _alone(layers: Sequence[FusedLayer]) -> None:
    for layer in layers:
        layer.chain = None


def _tried(owner: nn.Module, layers: Sequence[FusedLayer]) -> list[torch.Tensor]:
    """What a model says behind random rows, and the keys and values of its layers."""
    cache, width = GrowingCache(), layers[0].width
    for rows in (PREFIX, WIDTH):
        given = {"inputs_embeds": random(1, rows, width), "use_cache": True, cache_argument(owner.forward): cache}
        states: torch.Tensor = owner(**given).last_hidden_state
    held = [cache.held(layer.index) for layer in layers]
    kept = [tensor for each in held if each is not None for tensor in (each.keys, each.values) if tensor is not None]
    return [states, *kept]
