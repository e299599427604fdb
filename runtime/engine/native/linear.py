"""A linear layer over a compressed weight; rows in fp32, or in as many digits, see ``integers.c``."""

from __future__ import annotations

import torch
from torch import nn

from runtime.engine.native import team
from runtime.engine.native.blocks import Blocks, Form
from runtime.engine.native.library import kernels
from runtime.engine.native.panels import Panels, blocks_of_panels, panels_of


class BlockLinear(nn.Module):
    """``nn.Linear`` over compressed weights, on CPU; inference only.

    The weight is laid out for the kernels when that is first asked for: parts that are to be joined never are.

    Args:
        blocks: The weight.
        bias: Float32, shape (outputs,), or None.
    """

    kernel = "multiply"
    """Function of ``kernels.h`` that multiplies."""

    def __init__(self, blocks: Blocks, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = blocks.width, blocks.outputs, bias
        self.form = int(blocks.form)
        self._held: Blocks | None = blocks
        self._panels: Panels | None = None
        self._places = (0, 0)
        self._multiply = getattr(kernels(), self.kernel)

    @property
    def packed_bytes(self) -> int:
        """Size of the compressed weight."""
        held = self._panels or self._held
        return 0 if held is None else held.bytes

    @property
    def blocks(self) -> Blocks:
        """The weight as it came."""
        if self._held is not None:
            return self._held
        return blocks_of_panels(self.laid_out(), Form(self.form), self.out_features)

    @property
    def places(self) -> tuple[int, int]:
        """Where codes and scales lie; they belong to this layer."""
        self.laid_out()
        return self._places

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Float32 rows (..., in_features) to (..., out_features).

        Raises:
            MemoryError: If there is no memory for what is made of the rows.
        """
        if self._panels is None:
            self.laid_out()
        rows = rows.contiguous()
        result = rows.new_empty((*rows.shape[:-1], self.out_features))
        failed = self._multiply(
            self.form, rows.data_ptr(), rows.numel() // self.in_features, self.in_features, *self._places,
            result.data_ptr(), self.out_features, team.size(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"no memory for {rows.numel()} numbers of a product")
        return result if self.bias is None else result.add_(self.bias)

    def laid_out(self) -> Panels:
        """The weight as the kernels read it."""
        if self._panels is None:
            self._panels, self._held = panels_of(self.blocks), None
            self._places = (self._panels.codes.data_ptr(), self._panels.scales.data_ptr())
        return self._panels
