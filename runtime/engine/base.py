"""The contract of an engine: a causal language model with one sequence state.

    cache of the model:   [0 ........ length)      tokens whose KV is held; only ``forward`` adds, only ``crop`` removes

Implementations are not thread-safe: one thread decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch

from runtime.engine.kv_state import KVState

Logits = Literal["last", "all"]


class CausalModel(Protocol):
    """A model that can forward, roll back, and say what it costs."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to this, exclusive; the last dimension of all logits."""
        ...

    @property
    def context_limit(self) -> int:
        """Longest sequence the model can read, in tokens."""
        ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Size of the KV of one token."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Size of the weights in compute memory, packed copies included."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations and KV; for weights in 8 bit see ``compute_dtype``.

        It sets the margin of the guard, unless the engine has measured one for itself, see ``TargetModel``.
        """
        ...

    def forward(self, tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        """Append tokens to the sequence.

        Args:
            tokens: Token ids behind the cached ones, at least one.
            logits: ``"all"`` for the logits behind every token, ``"last"`` for those behind the last.

        Returns:
            Float32 logits, shape (n, vocab) or (1, vocab). Row i says what follows ``tokens[i]``. If the call fails
            the cache is as before.

        Raises:
            ValueError: If there is no token or the sequence would pass ``context_limit``.
        """
        ...

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on; nothing happens if there are none."""
        ...

    def export_kv(self, start: int, end: int) -> KVState:
        """Copy out the KV of tokens ``start`` to ``end`` of the sequence."""
        ...

    def import_kv(self, states: Sequence[KVState], length: int) -> None:
        """Replace the sequence by the first ``length`` tokens of consecutive ``states``, the first from 0, by copy."""
        ...

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Rows of the input embedding table, shape (1, n, width), as the first layer reads them."""
        ...

    def reset(self) -> None:
        """Forget the sequence."""
        ...

    def synchronize(self) -> None:
        """Return when all work that this thread issued to the device is finished."""
        ...


class TargetModel(CausalModel, Protocol):
    """A causal model that a zoo's drafts may belong to, and whose KV may lie on disk."""

    @property
    def engine(self) -> str:
        """Name of the engine, as users and profiles give it."""
        ...

    @property
    def fingerprint(self) -> str:
        """Target fingerprint of the weights, the same in every engine, see ``runtime.engine.fingerprint``."""
        ...

    @property
    def dtype_name(self) -> str:
        """What the weights are in, as users and profiles give it."""
        ...

    @property
    def guard_margin(self) -> float | None:
        """Margin of the guard as the engine measured it, logits; None = it goes by ``dtype``.

        Where two tokens lie nearer to each other, the width of a forward may decide which is the likelier.
        """
        ...

    @property
    def kv_name(self) -> str:
        """What a stored KV belongs to: these weights in this format, computed by this engine."""
        ...
