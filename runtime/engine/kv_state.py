"""The KV of consecutive tokens, taken out of a model's cache: what the KV store keeps, shares and writes to disk.

sequence   [0 ............ start ............ end .......)
state                      [0 .. length)                      rows i belong to token start + i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Layer = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class KVState:
    """An immutable copy of the KV of ``length`` consecutive tokens.

    Keys are stored as the model computed them, with their positions in them: a state is good only behind the very
    tokens it was computed behind.

    Attributes:
        layers: Keys and values of every layer, each of shape (1, kv_heads, length, head_dim). Never changed.
    """

    layers: tuple[Layer, ...]

    @property
    def length(self) -> int:
        """Tokens covered."""
        return int(self.layers[0][0].shape[-2])

    @property
    def bytes(self) -> int:
        """Memory it takes."""
        return sum(part.numel() * part.element_size() for layer in self.layers for part in layer)

    def slice(self, start: int, end: int) -> KVState:
        """A copy of tokens ``start`` to ``end``; it shares no memory with this one."""
        return KVState(
            tuple((keys[..., start:end, :].clone(), values[..., start:end, :].clone()) for keys, values in self.layers)
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """By name, for a file; contiguous, on the CPU."""
        named = {}
        for index, (keys, values) in enumerate(self.layers):
            named[f"keys.{index}"] = keys.cpu().contiguous()
            named[f"values.{index}"] = values.cpu().contiguous()
        return named

    @classmethod
    def from_tensors(cls, named: Mapping[str, torch.Tensor], device: torch.device | str = "cpu") -> KVState:
        """What ``tensors`` made, on a device.

        Raises:
            KeyError: If a layer's keys or values are missing.
        """
        layers = sum(name.startswith("keys.") for name in named)
        return cls(
            tuple((named[f"keys.{index}"].to(device), named[f"values.{index}"].to(device)) for index in range(layers))
        )


def total_length(states: Sequence[KVState]) -> int:
    """Tokens that consecutive states cover together."""
    return sum(state.length for state in states)
