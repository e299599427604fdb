"""What a drafter asks of a draft in memory, whatever engine runs it: logits behind embedded tokens, and roll-back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from transformers import Cache, PreTrainedModel

from runtime.engine.draft_net import DraftNet
from runtime.engine.graphs.choice import choose_runner


class DraftSequence(Protocol):
    """A draft with the KV of one sequence."""

    def forward(self, embedded: torch.Tensor, keep: int) -> torch.Tensor:
        """Append tokens to the sequence.

        Args:
            embedded: Rows of the target's input embedding table, shape (1, n, width).
            keep: Logits are wanted behind this many of the last tokens, 1 to n.

        Returns:
            Float32 logits over the draft's own vocabulary, shape (keep, V).
        """
        ...

    def crop_to(self, length: int) -> None:
        """Keep the first ``length`` tokens, or all if there are fewer."""
        ...


@runtime_checkable
class Draft(Protocol):
    """A draft in compute memory: what the loader delivers and a drafter runs. It has no sequence of its own."""

    @property
    def name(self) -> str:
        """Its name in the zoo."""
        ...

    @property
    def vocab(self) -> tuple[int, ...]:
        """Token id of every row of the head, ascending."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        ...

    def sequence(self) -> DraftSequence:
        """A new, empty sequence."""
        ...


class DraftStep:
    """Implements ``Step``: logits over the draft's own vocabulary.

    Args:
        net: The network.
    """

    def __init__(self, net: DraftNet) -> None:
        self._net = net

    @property
    def network(self) -> PreTrainedModel:
        return self._net.body

    def __call__(self, inputs: torch.Tensor, cache: Cache, keep: int) -> torch.Tensor:
        hidden = self._net.hidden(inputs, cache)
        logits: torch.Tensor = self._net.head(hidden[:, -keep:])[0]
        return logits.float()


class TorchSequence:
    """Implements ``DraftSequence`` with a network in torch.

    Args:
        net: The network, shared by all its sequences.
        graphs: As of ``TransformersModel``.
    """

    def __init__(self, net: DraftNet, graphs: bool | None = None) -> None:
        self._runner = choose_runner(DraftStep(net), net.vocab.device, graphs)

    def forward(self, embedded: torch.Tensor, keep: int) -> torch.Tensor:
        return self._runner.forward(embedded, keep)

    def crop_to(self, length: int) -> None:
        self._runner.cache.crop_to(length)
