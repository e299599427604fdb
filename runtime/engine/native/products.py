"""How a model's products are computed: in floats or in integers, of weights as they are or in few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from runtime.engine.native.blocks import Blocks, exact, nearest
from runtime.engine.native.integers import FORMS, IntegerLinear
from runtime.engine.native.linear import BlockLinear
from runtime.engine.native.modules import ANY_ROWS, FEW_ROWS


def _as_it_is(weight: torch.Tensor) -> None:
    """No blocks."""


class Products(NamedTuple):
    """A way to compute them.

    Attributes:
        compress: Makes blocks of a weight, or None.
        layer: Multiplies with blocks; made of them and a bias or None.
        most_rows: Tokens up to which a forward is the kernels'.
    """

    compress: Callable[[torch.Tensor], Blocks | None]
    layer: Callable[[Blocks, nn.Parameter | None], BlockLinear] = BlockLinear
    most_rows: int = FEW_ROWS


def integer_layer(blocks: Blocks, bias: nn.Parameter | None) -> BlockLinear:
    """A layer that multiplies integers, where the blocks are such."""
    return IntegerLinear(blocks, bias) if blocks.form in FORMS else BlockLinear(blocks, bias)


UNCOMPRESSED = Products(_as_it_is)
EXACT = Products(exact)
"""Weights in few bits where that loses nothing."""
NEAREST = Products(nearest)
"""All weights in at most 8 bit."""
INTEGERS = Products(nearest, integer_layer, ANY_ROWS)
"""The same, and rows rounded to 8 bit."""
