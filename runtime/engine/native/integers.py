"""A linear layer that multiplies integers: a weight of 4 or 8 bit, and rows rounded to 8 bit by blocks of 32.

A processor with AVX-512 VNNI multiplies 64 bytes and adds the products up in one instruction. Integers add up exactly
and blocks in one order, so a row comes out the same, bit for bit, however many rows are multiplied with it.
"""

from __future__ import annotations

import torch
from torch import nn

from runtime.engine.malloc import lasting, new_lasting
from runtime.engine.native import team
from runtime.engine.native.blocks import BLOCK, Blocks, Form
from runtime.engine.native.library import kernels

FORMS = (Form.FOUR, Form.EIGHT, Form.ROWS)
"""What can be multiplied so."""
SIGN = 128
"""Codes of 8 bit are stored as q + 128: one side of the instruction has no sign."""


def lanes() -> int:
    """Outputs that lie side by side; 0 where there are no such kernels."""
    return 0 if kernels() is None else int(kernels().integer_lanes())


class IntegerLinear(nn.Module):
    """``nn.Linear`` over compressed weights and rounded rows, on CPU; inference only.

    Args:
        blocks: The weight, of a form in ``FORMS``.
        bias: Float32, shape (outputs,), or None.
    """

    def __init__(self, blocks: Blocks, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = blocks.width, blocks.outputs, bias
        self.panels, self.scales = _panels(blocks, lanes())
        self.form = int(blocks.form)
        self.places = (self.panels.data_ptr(), self.scales.data_ptr())
        self._multiply = kernels().multiply_integers

    @property
    def packed_bytes(self) -> int:
        """Size of the compressed weight."""
        return self.panels.numel() + self.scales.numel() * self.scales.element_size()

    def blocks(self) -> Blocks:
        """The weight as it came."""
        form, groups = Form(self.form), self.in_features // BLOCK
        codes = self.panels.permute(0, 3, 1, 2, 4).reshape(-1, groups, self.panels.shape[2] * 4)[: self.out_features]
        if form is Form.ROWS:
            return Blocks(form, codes ^ SIGN, self.scales[: self.out_features, None, None])
        scales = self.scales.permute(0, 3, 1, 2).reshape(-1, groups, self.scales.shape[2])[: self.out_features]
        return Blocks(form, codes if form is Form.FOUR else codes ^ SIGN, scales)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Float32 rows (..., in_features) to (..., out_features).

        Raises:
            MemoryError: If there is no memory for the rounded rows.
        """
        rows = rows.contiguous()
        result = rows.new_empty((*rows.shape[:-1], self.out_features))
        failed = self._multiply(
            self.form, rows.data_ptr(), rows.numel() // self.in_features, self.in_features, *self.places,
            result.data_ptr(), self.out_features, team.size(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"no memory for {rows.numel()} bytes of rounded rows")
        return result if self.bias is None else result.add_(self.bias)


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """Float32 rows (..., width) as the kernels see them."""
    blocks = rows.reshape(-1, BLOCK)
    scale = blocks.abs().amax(dim=-1, keepdim=True) / 127
    codes = (blocks / torch.where(scale == 0, 1.0, scale)).round()
    return (codes * scale).reshape(rows.shape)


def _panels(blocks: Blocks, side_by_side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as ``integers.c`` reads them; outputs are filled up with zeros to whole panels."""
    groups, outputs = blocks.width // BLOCK, -(-blocks.outputs // side_by_side) * side_by_side
    fours = _filled(blocks.codes.contiguous().view(torch.int32), outputs)  # four codes a number
    fours = fours.reshape(-1, side_by_side, groups, fours.shape[-1]).permute(0, 2, 3, 1)
    panels = new_lasting(fours.shape, torch.int32).copy_(fours).view(torch.uint8)
    if blocks.form is not Form.FOUR:
        panels ^= SIGN
    panels = panels.unflatten(-1, (side_by_side, 4))  # type: ignore[no-untyped-call]
    scales = _filled(blocks.scales, outputs)
    if blocks.form is Form.ROWS:
        return panels, scales.flatten()
    return panels, lasting(scales.reshape(-1, side_by_side, groups, scales.shape[-1]).permute(0, 2, 3, 1))


def _filled(rows: torch.Tensor, count: int) -> torch.Tensor:
    """A tensor (rows, ...) with rows of zeros added up to ``count``."""
    missing = count - rows.shape[0]
    return rows if not missing else torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
