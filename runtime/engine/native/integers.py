"""A linear layer that multiplies integers: a weight of 4 or 8 bit, and rows rounded to 8 bit by blocks of 32.

A processor with AVX-512 VNNI multiplies 64 bytes and adds the products up in one instruction. Integers add up exactly
and blocks in one order, so a row comes out the same, bit for bit, however many rows are multiplied with it.
"""

from __future__ import annotations

import torch

from runtime.engine.native.blocks import BLOCK, Form
from runtime.engine.native.library import kernels
from runtime.engine.native.linear import BlockLinear

FORMS = (Form.FOUR, Form.EIGHT, Form.ROWS)
"""What can be multiplied so."""


class IntegerLinear(BlockLinear):
    """``nn.Linear`` over compressed weights of a form in ``FORMS`` and rounded rows; else as ``BlockLinear``."""

    kernel = "multiply_integers"


def has_integers() -> bool:
    """Whether there are such kernels."""
    return kernels() is not None and bool(kernels().has_integers())


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """Float32 rows (..., width) as the kernels see them."""
    blocks = rows.reshape(-1, BLOCK)
    scale = blocks.abs().amax(dim=-1, keepdim=True) / 127
    codes = (blocks / torch.where(scale == 0, 1.0, scale)).round()
    return (codes * scale).reshape(rows.shape)
