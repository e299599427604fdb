"""Trying a replacement against the module it is to replace."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn

from runtime.engine.kv_cache import GrowingCache, cache_argument

TOLERANCE = 1e-4
"""Part of the spread of an answer by which a replacement may differ; rounding takes 1e-6."""
PREFIX, WIDTH = 7, 3
"""Tokens in the cache and behind it, where attention is tried."""
OTHERWISE = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""What a module raises that wants to be called otherwise, or is made otherwise."""

Passes = Callable[[str, Callable[[], bool]], bool]
"""For one module: a question about a replacement and how to answer it, to the answer."""


class Verdicts:
    """What trials found, by module: models that differ in nothing but their weights are tried once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bool] = {}

    def of(self, path: str) -> Passes:
        """Those of one module."""
        return partial(self._passes, path)

    def _passes(self, path: str, kind: str, trial: Callable[[], bool]) -> bool:
        known = self._known.get((path, kind))
        if known is None:
            known = self._known[path, kind] = trial()
        return known


@lru_cache(maxsize=16)
def verdicts_of(kind: str) -> Verdicts:
    """Those of all models of one kind: with equal configurations, replaced in the same way."""
    return Verdicts()


class Trial:
    """Calls of modules behind a random cache; the same for all.

    Args:
        module: Attention, or a layer with it.
        index: Its layer's.
        groups: Heads of keys.
        size: Numbers of a head.
        width: Of the states.
    """

    def __init__(self, module: nn.Module, index: Any, groups: int, size: int, width: int) -> None:
        self._layer, self.answered_tuple = int(index), False
        self._cache = cache_argument(module.forward)
        self._prefix = random(2, 1, groups, PREFIX, size)
        self._states = random(1, WIDTH, width)
        self._turn = (random(1, WIDTH, size), random(1, WIDTH, size).neg())
        later = torch.arange(PREFIX + WIDTH)[None, :] > PREFIX + torch.arange(WIDTH)[:, None]
        self._mask = torch.zeros(1, 1, WIDTH, PREFIX + WIDTH).masked_fill(later, float("-inf"))

    def run(self, module: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Answer, and the keys and values left in the cache."""
        cache = self._filled_cache()
        answer = self._answer(module, cache, self._turn)
        layer = cache.held(self._layer)
        assert layer is not None and layer.keys is not None and layer.values is not None, "the prefix is held"
        self.answered_tuple = isinstance(answer, tuple)
        return (answer[0] if isinstance(answer, tuple) else answer), layer.keys, layer.values

    def turns_parts(self, module: nn.Module) -> bool:
        """Whether a module turns as much of a head as it is told to: in a real forward perhaps a part of it."""
        half = self._turn[0].shape[-1] // 2
        try:
            self._answer(module, self._filled_cache(), (self._turn[0][..., :half], self._turn[1][..., :half]))
        except OTHERWISE:
            return False
        return True

    def _filled_cache(self) -> GrowingCache:
        cache = GrowingCache()
        cache.update(self._prefix[0], self._prefix[1], self._layer)
        return cache

    def _answer(self, module: nn.Module, cache: GrowingCache, turn: tuple[torch.Tensor, torch.Tensor]) -> Any:
        arguments: dict[str, Any] = {"attention_mask": self._mask, "position_embeddings": turn, self._cache: cache}
        return module(hidden_states=self._states, **arguments)


def answer_of(module: nn.Module, rows: torch.Tensor) -> torch.Tensor | None:
    """What a module makes of rows; None if it is called otherwise, or answers with something else."""
    try:
        answer = module(rows)
    except OTHERWISE:
        return None
    return answer if isinstance(answer, torch.Tensor) else None


def agree(got: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    """Whether two answers are the same but for rounding."""
    if got is None or expected is None or got.shape != expected.shape:
        return False
    return bool((got - expected).abs().max() <= TOLERANCE * (expected.max() - expected.min()))


def random(*shape: int) -> torch.Tensor:
    """Normal numbers, always the same; the global generator stays where it is."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
