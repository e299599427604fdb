"""One product for several linear layers that read the same rows: a layer's queries, keys and values, say.

The first of the layers that is called computes for all; the others hand out their part of it. That holds only for the
very tensor the first one got: another one is multiplied anew, so the layers stay right wherever they stand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class SharedProduct(nn.Module):
    """A linear layer whose outputs belong to several layers, side by side.

    Args:
        linear: The layer of all their outputs.
        sizes: Outputs of each.
    """

    def __init__(self, linear: nn.Module, sizes: Sequence[int]) -> None:
        super().__init__()
        self.linear, self.sizes = linear, list(sizes)
        self._rows: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """All outputs, shape (..., sum of sizes)."""
        product: torch.Tensor = self.linear(rows)
        return product

    def part(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """Outputs of one layer, shape (..., size)."""
        if self._rows is not rows or index not in self._parts:
            self._rows, self._parts = rows, dict(enumerate(self.linear(rows).split(self.sizes, dim=-1)))
        part = self._parts.pop(index)
        if not self._parts:
            self._rows = None
        return part


class Part(nn.Module):
    """One of the layers.

    Args:
        shared: Their product.
        index: Which of them this is.
    """

    def __init__(self, shared: SharedProduct, index: int) -> None:
        super().__init__()
        self.out_features = shared.sizes[index]
        self._shared, self._index = [shared], index  # in a list: it is no child of every part

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (..., in_features) to (..., out_features)."""
        return self._shared[0].part(self._index, rows)
