"""One forward of a causal language model, from token ids."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import Cache, PreTrainedModel

from runtime.engine.kv_cache import GrowingCache, cache_argument
from runtime.engine.native.modules import NarrowMask


class TokenStep:
    """Implements ``Step``.

    Args:
        model: The model, with its kernels installed.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        accepted = inspect.signature(model.forward).parameters
        self.network = model
        self._cache_argument = cache_argument(model.forward)
        self._can_keep_logits = "logits_to_keep" in accepted
        self._narrow = NarrowMask(model)

    def __call__(self, inputs: torch.Tensor, cache: Cache, keep: int) -> torch.Tensor:
        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        if keep < inputs.shape[1] and self._can_keep_logits:
            arguments["logits_to_keep"] = keep
        if isinstance(cache, GrowingCache):
            arguments |= self._narrow.arguments(inputs.shape[1], cache)
        rows: torch.Tensor = self.network(input_ids=inputs, **arguments).logits[0]  # (n or keep, vocab)
        return (rows if keep == len(rows) else rows[-keep:]).float()
