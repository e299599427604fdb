"""The contracts of this folder: what a network computes, what runs it, and what records it.

A step is one forward of a network behind a cache (``TokenStep`` of a target, ``DraftStep`` of a draft). A runner is a
sequence that a step is run on (``EagerRunner``, ``GraphRunner``). A recorder makes replays of computations
(``CudaRecorder``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from transformers import Cache, PreTrainedModel

from runtime.engine.kv_state import KVState, Layer

Replay = Callable[[], torch.Tensor]
"""Computes again what was recorded, from what now lies in the same input tensors, into the same output tensor."""


class Step(Protocol):
    """One forward of a network."""

    @property
    def network(self) -> PreTrainedModel:
        """What is forwarded, for what transformers says of it."""
        ...

    def __call__(self, inputs: torch.Tensor, cache: Cache, keep: int) -> torch.Tensor:
        """Forward tokens behind a cache, which is extended.

        Args:
            inputs: Token ids (1, n) or embedded tokens (1, n, width), on the network's device.
            cache: KV of the tokens before; it says where the new ones go.
            keep: Logits are wanted behind this many of the last tokens, 1 to n.

        Returns:
            Float32 logits, shape (keep, V).
        """
        ...


class SequenceCache(Protocol):
    """KV of one sequence, batch 1."""

    @property
    def length(self) -> int:
        """Tokens that every layer holds."""
        ...

    def crop_to(self, length: int) -> None:
        """Keep the first ``length`` tokens in every layer, all if there are fewer. Buffers stay allocated."""
        ...

    def copy_out(self, start: int, end: int) -> KVState:
        """A copy of the keys and values of tokens ``start`` to ``end``."""
        ...

    def append(self, layers: tuple[Layer, ...], length: int) -> None:
        """Add copies of the first ``length`` tokens' keys and values to every layer."""
        ...


class Runner(Protocol):
    """A sequence that a network is run on. One thread uses it."""

    @property
    def cache(self) -> SequenceCache:
        """What the sequence holds."""
        ...

    def forward(self, inputs: torch.Tensor, keep: int) -> torch.Tensor:
        """Append tokens to the sequence. If the call fails the cache may hold more tokens than before: crop it.

        Args:
            inputs: Token ids (1, n) or embedded tokens (1, n, width), on any device.
            keep: Logits are wanted behind this many of the last tokens, 1 to n.

        Returns:
            Float32 logits, shape (keep, V), which later forwards leave alone.
        """
        ...


class Recorder(Protocol):
    """Makes replays."""

    @property
    def failed(self) -> bool:
        """Whether a computation could not be recorded: others of the same network will not be either."""
        ...

    def record(self, compute: Callable[[], torch.Tensor]) -> Replay | None:
        """Record a computation that reads and writes tensors which stay where they are.

        Args:
            compute: The computation; it ran before, so that all it allocates once is there.

        Returns:
            Its replay, whose output is overwritten by later replays; None if it cannot be recorded.
        """
        ...
