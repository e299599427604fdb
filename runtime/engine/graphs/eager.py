"""Forwards as they come: any width, any device, every kernel started from here."""

from __future__ import annotations

import torch

from runtime.engine.graphs.base import Step
from runtime.engine.kv_cache import GrowingCache


class EagerRunner:
    """Implements ``Runner``.

    Args:
        step: What is run.
        device: Where it computes.
    """

    def __init__(self, step: Step, device: torch.device) -> None:
        self.cache = GrowingCache()
        self._step, self._device = step, device

    def forward(self, inputs: torch.Tensor, keep: int) -> torch.Tensor:
        return self._step(inputs.to(self._device), self.cache, keep)
