"""A linear layer over a weight of 4 or 8 bit; activations and sums in fp32."""

from __future__ import annotations

import torch
from torch import nn

from runtime.engine.malloc import lasting
from runtime.engine.native import team
from runtime.engine.native.blocks import Blocks
from runtime.engine.native.library import kernels

KERNEL_ROWS = 24
"""Most rows that the kernel multiplies; for more the weight is made into floats first, and torch multiplies."""
PART_BYTES = 2 << 20
"""Floats made at once: so many stay in the processor's cache until they are multiplied."""


class BlockLinear(nn.Module):
    """``nn.Linear`` over compressed weights, on CPU; inference only.

    Args:
        blocks: The weight.
        bias: Float32, shape (outputs,), or None.
    """

    def __init__(self, blocks: Blocks, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = blocks.width, blocks.outputs
        self.blocks = blocks._replace(codes=lasting(blocks.codes), scales=lasting(blocks.scales))
        self.bias = bias
        self.form = int(blocks.form)
        self.places = (self.blocks.codes.data_ptr(), self.blocks.scales.data_ptr())
        self._multiply, self._expand = kernels().multiply, kernels().expand

    @property
    def packed_bytes(self) -> int:
        """Size of the compressed weight."""
        return self.blocks.bytes

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Float32 rows (..., in_features) to (..., out_features)."""
        flat = rows.reshape(-1, self.in_features).contiguous()
        count, threads = flat.shape[0], team.size()
        if count > KERNEL_ROWS:
            return self._wide(flat).view(*rows.shape[:-1], self.out_features)
        result = flat.new_empty((*rows.shape[:-1], self.out_features))
        self._multiply(
            self.form, flat.data_ptr(), count, self.in_features, *self.places, result.data_ptr(),
            self.out_features, threads,
        )  # fmt: skip
        return result if self.bias is None else result.add_(self.bias)

    def _wide(self, flat: torch.Tensor) -> torch.Tensor:
        """Rows (n, in_features) to (n, out_features), some outputs at a time."""
        step = max(1, PART_BYTES // (4 * self.in_features))
        result, scratch = flat.new_empty(flat.shape[0], self.out_features), flat.new_empty(step, self.in_features)
        for start in range(0, self.out_features, step):
            end = min(start + step, self.out_features)
            self._floats(start, end, scratch)
            torch.mm(flat, scratch[: end - start].t(), out=result[:, start:end])
        return result if self.bias is None else result.add_(self.bias)

    def dequantised(self) -> torch.Tensor:
        """The weight it computes with, float32, shape (out_features, in_features)."""
        weight = torch.empty(self.out_features, self.in_features)
        self._floats(0, self.out_features, weight)
        return weight

    def _floats(self, start: int, end: int, into: torch.Tensor) -> None:
        """The weights of some outputs."""
        codes, scales = self.blocks.codes, self.blocks.scales
        self._expand(
            self.form,
            self.places[0] + start * codes.stride(0),
            self.places[1] + start * scales.stride(0) * scales.element_size(),
            into.data_ptr(),
            end - start,
            self.in_features,
            team.size(),
        )
