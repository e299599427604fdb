"""Compressed weights as the kernels read them: panels of 16 outputs side by side, see ``floats.c``."""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.engine.malloc import lasting
from runtime.engine.native.blocks import BLOCK, Blocks, Form
from runtime.engine.slabs import new_weights

LANES = 16
"""Floats of the kernels' vectors: outputs side by side. Widths of heads, norms and gates are multiples of it."""
SIGN = 128
"""Codes of 8 bit are stored as q + 128: one side of the instruction that multiplies integers has no sign."""
SIGNED = (Form.EIGHT, Form.ROWS)
"""Forms with codes of 8 bit."""


class Panels(NamedTuple):
    """A weight in panels; outputs are filled up with zeros to whole ones.

    Attributes:
        codes: uint8, shape (panels, width / 32, vectors of a block, 64): four bytes of each output side by side.
        scales: float16, shape (panels, width / 32, scales of a block, 16); float32, shape (panels, 16), for ``ROWS``;
            none for ``HALVES``.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def bytes(self) -> int:
        """Memory it takes."""
        return self.codes.numel() + self.scales.numel() * self.scales.element_size()


def panels_of(blocks: Blocks) -> Panels:
    """A weight as the kernels read it."""
    groups, outputs = blocks.width // BLOCK, -(-blocks.outputs // LANES) * LANES
    fours = _filled(blocks.codes.contiguous().view(torch.int32), outputs)  # four bytes a number
    fours = fours.reshape(-1, LANES, groups, fours.shape[-1]).permute(0, 2, 3, 1)
    codes = new_weights(fours.shape, torch.int32).copy_(fours).view(torch.uint8)
    if blocks.form in SIGNED:
        codes ^= SIGN
    if blocks.form is Form.HALVES:
        return Panels(codes, blocks.scales)
    scales = _filled(blocks.scales, outputs)
    if blocks.form is Form.ROWS:
        return Panels(codes, scales.reshape(-1, LANES).contiguous())
    return Panels(codes, lasting(scales.reshape(-1, LANES, *scales.shape[1:]).permute(0, 2, 3, 1)))


def blocks_of_panels(panels: Panels, form: Form, outputs: int) -> Blocks:
    """The weight as it came."""
    groups = panels.codes.shape[1]
    fours = panels.codes.view(torch.int32).permute(0, 3, 1, 2)
    codes = fours.reshape(-1, groups, fours.shape[-1])[:outputs].contiguous().view(torch.uint8)
    codes = codes ^ SIGN if form in SIGNED else codes
    if form is Form.HALVES:
        return Blocks(form, codes, panels.scales)
    if form is Form.ROWS:
        return Blocks(form, codes, panels.scales.reshape(-1, 1, 1)[:outputs])
    scales = panels.scales.permute(0, 3, 1, 2)
    return Blocks(form, codes, scales.reshape(-1, *scales.shape[2:])[:outputs])


def _filled(rows: torch.Tensor, count: int) -> torch.Tensor:
    """A tensor (rows, ...) with rows of zeros added up to ``count``."""
    missing = count - rows.shape[0]
    return rows if not missing else torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
