"""Weights in fewer bits: found where a weight already has that form, made where it is wanted.

The weights of a GGUF file, or of a draft file, are a few bits and a scale for some of them; most others are bf16. Made
into floats they still lie on that grid, and taking the bits back loses nothing: products are the same to the rounding
of their sums, and read an eighth, a quarter or a half of the memory. ``exact`` finds the grid; ``nearest`` rounds any
weight to 8 bit.

    form      weights                                     as in                   bytes a weight
    FOUR      d * q + m, q in 0..15, by blocks of 32      GGUF's Q4_1             0.625
    EIGHT     d * q, q in -127..127, by blocks of 32      GGUF's Q8_0             1.0625
    ROWS      s * q, q in -127..127, by rows              a draft file            1
    HALVES    bf16                                        most published models   2
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import torch

BLOCK = 32
EXACT = 2.0**-20
"""Part of a block's largest weight by which a weight may differ from its grid: the rounding of d * q + m in fp32."""


class Form(enum.IntEnum):
    """How codes and scales make a weight; the numbers are those of ``kernels.h``."""

    FOUR = 0
    EIGHT = 1
    ROWS = 2
    HALVES = 3


class Blocks(NamedTuple):
    """A weight of shape (outputs, width).

    Attributes:
        form: How codes and scales make it.
        codes: uint8, shape (outputs, width / 32, bytes of a block): two weights a byte for ``FOUR``, bf16 inside for
            ``HALVES``, int8 for others.
        scales: float16, shape (outputs, width / 32, 2) for ``FOUR``: (d, m); (outputs, width / 32, 1) for ``EIGHT``;
            float32, shape (outputs, 1, 1) for ``ROWS``; none, shape (outputs, 0, 0), for ``HALVES``.
    """

    form: Form
    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return int(self.codes.shape[0])

    @property
    def width(self) -> int:
        """Columns of the weight."""
        return int(self.codes.shape[1]) * BLOCK

    @property
    def bytes(self) -> int:
        """Memory it takes."""
        return self.codes.numel() + self.scales.numel() * self.scales.element_size()

    def weight(self) -> torch.Tensor:
        """The weight itself, float32, shape (outputs, width)."""
        scales = self.scales.float()
        if self.form is Form.HALVES:
            blocks = self.codes.view(torch.bfloat16).float()
        elif self.form is Form.FOUR:
            codes = torch.cat([self.codes & 15, self.codes >> 4], dim=-1).float()
            blocks = codes * scales[..., :1] + scales[..., 1:]
        else:
            blocks = self.codes.view(torch.int8).float() * scales
        return blocks.reshape(self.outputs, self.width)


def exact(weight: torch.Tensor) -> Blocks | None:
    """An fp32 weight (outputs, width) that lies on a grid, in its form; None if it lies on none."""
    if weight.shape[1] % BLOCK or weight.dtype != torch.float32:
        return None
    for form in Form:
        if _fits(blocks_of(weight[:2], form), weight[:2]):  # two rows tell; most weights lie on no grid
            blocks = blocks_of(weight, form)
            if _fits(blocks, weight):
                return blocks
    return None


def nearest(weight: torch.Tensor) -> Blocks | None:
    """A weight (outputs, width) in at most 8 bit, rounded if need be; None if its width is no multiple of 32."""
    if weight.shape[1] % BLOCK:
        return None
    found = exact(weight)
    return found if found is not None and found.form is not Form.HALVES else _eight(weight.float())


def blocks_of(weight: torch.Tensor, form: Form) -> Blocks:
    """An fp32 weight (outputs, width) rounded to a form's grid; the width is a multiple of 32."""
    return {Form.FOUR: _four, Form.EIGHT: _eight, Form.ROWS: _rows, Form.HALVES: _halves}[form](weight)


def of_rows(values: torch.Tensor, scale: torch.Tensor) -> Blocks:
    """The weight ``values * scale[:, None]``, of int8 values (outputs, width) and fp32 scales (outputs,)."""
    return Blocks(Form.ROWS, _split(values).contiguous().view(torch.uint8), scale.float()[:, None, None])


def stacked(parts: Sequence[Blocks]) -> Blocks | None:
    """Weights below each other as one; None if they differ in form or width."""
    if len({(part.form, part.width) for part in parts}) != 1:
        return None
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    return Blocks(parts[0].form, codes, scales)


def _fits(blocks: Blocks, weight: torch.Tensor) -> bool:
    largest = _split(weight).abs().amax(dim=-1, keepdim=True)
    return bool((_split(blocks.weight() - weight).abs() <= EXACT * largest).all())  # false for what is not finite


def _split(weight: torch.Tensor) -> torch.Tensor:
    return weight.reshape(weight.shape[0], -1, BLOCK)


def _four(weight: torch.Tensor) -> Blocks:
    """The grid from the smallest to the largest value of each block."""
    values = _split(weight)
    low, high = values.amin(dim=-1, keepdim=True), values.amax(dim=-1, keepdim=True)
    scales = torch.cat([(high - low) / 15, low], dim=-1).half()
    d, m = scales[..., :1].float(), scales[..., 1:].float()
    codes = ((values - m) / torch.where(d == 0, 1.0, d)).round().clamp(0, 15).to(torch.uint8)
    return Blocks(Form.FOUR, codes[..., :16] | codes[..., 16:] << 4, scales)


def _eight(weight: torch.Tensor) -> Blocks:
    """The grid from zero to the largest magnitude of each block."""
    scales = (_split(weight).abs().amax(dim=-1, keepdim=True) / 127).half()
    return Blocks(Form.EIGHT, _codes(weight, scales.float()), scales)


def _rows(weight: torch.Tensor) -> Blocks:
    """The grid from zero to the largest magnitude of each row."""
    scales = weight.abs().amax(dim=-1)[:, None, None] / 127
    return Blocks(Form.ROWS, _codes(weight, scales), scales)


def _halves(weight: torch.Tensor) -> Blocks:
    codes = _split(weight).to(torch.bfloat16).contiguous().view(torch.uint8)
    return Blocks(Form.HALVES, codes, weight.new_empty(weight.shape[0], 0, 0))


def _codes(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    codes = (_split(weight) / torch.where(scales == 0, 1.0, scales)).round().clamp(-127, 127)
    return codes.to(torch.int8).view(torch.uint8)
