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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

BLOCK = 32
EXACT = 2.0**-20
"""Part of a block's largest weight by which a weight may differ from its grid: the rounding of d * q + m in fp32."""
AT_ONCE = 200_000
"""Weights that are taken to a grid together: what is made of them on the way stays in the processor's cache."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """For many small steps: more threads spend longer on waiting for each other than on computing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
        room = torch.empty(self.outputs, self.width // BLOCK, BLOCK, dtype=torch.float32)
        return _restored(self, room).reshape(self.outputs, self.width)


def exact(weight: torch.Tensor) -> Blocks | None:
    """An fp32 weight (outputs, width) that lies on a grid, in its form; None if it lies on none."""
    if weight.shape[1] % BLOCK or weight.dtype != torch.float32:
        return None
    for form in Form:
        if _made(weight[:2], form, fitting=True) is not None:  # two rows tell; most weights lie on no grid
            blocks = _made(weight, form, fitting=True)
            if blocks is not None:
                return blocks
    return None


def nearest(weight: torch.Tensor) -> Blocks | None:
    """A weight (outputs, width) in at most 8 bit, rounded if need be; None if its width is no multiple of 32."""
    if weight.shape[1] % BLOCK:
        return None
    found = exact(weight)
    return found if found is not None and found.form is not Form.HALVES else blocks_of(weight.float(), Form.EIGHT)


def blocks_of(weight: torch.Tensor, form: Form) -> Blocks:
    """An fp32 weight (outputs, width) rounded to a form's grid; the width is a multiple of 32."""
    blocks = _made(weight, form)
    assert blocks is not None, "every weight can be rounded"
    return blocks


def of_rows(values: torch.Tensor, scale: torch.Tensor) -> Blocks:
    """The weight ``values * scale[:, None]``, of int8 values (outputs, width) and fp32 scales (outputs,)."""
    return Blocks(Form.ROWS, _split(values).contiguous().view(torch.uint8), scale.float()[:, None, None])


@_one_thread()
def stacked(parts: Sequence[Blocks]) -> Blocks | None:
    """Weights below each other as one; None if they differ in form or width."""
    if len({(part.form, part.width) for part in parts}) != 1:
        return None
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    return Blocks(parts[0].form, codes, scales)


@_one_thread()
def _made(weight: torch.Tensor, form: Form, fitting: bool = False) -> Blocks | None:
    """A weight rounded to a form's grid, some rows after the others; ``fitting``: None if that changes it."""
    whole, rows = _split(weight), max(1, AT_ONCE // max(1, weight.shape[1]))
    room, parts = torch.empty_like(whole[:rows]), []
    for start in range(0, len(whole), rows):
        values = whole[start : start + rows]
        codes, scales = _ROUND[form](values, room[: len(values)])
        part = Blocks(form, codes, scales)
        if fitting and not _fits(part, values, room[: len(values)]):
            return None
        parts.append(part)
    return stacked(parts)


def _fits(blocks: Blocks, values: torch.Tensor, room: torch.Tensor) -> bool:
    """Whether blocks are those values (outputs, width / 32, 32); ``room`` is of their shape."""
    largest = torch.maximum(values.amax(dim=-1), values.amin(dim=-1).neg_())
    apart = _restored(blocks, room).sub_(values).abs_().amax(dim=-1)
    return bool((apart <= EXACT * largest).all())  # false for what is not finite


def _restored(blocks: Blocks, room: torch.Tensor) -> torch.Tensor:
    """The weight, written into ``room``, float32 of shape (outputs, width / 32, 32)."""
    scales = blocks.scales.float()
    if blocks.form is Form.HALVES:
        return room.copy_(blocks.codes.view(torch.bfloat16))
    if blocks.form is Form.FOUR:
        room[..., :16].copy_(blocks.codes & 15)
        room[..., 16:].copy_(blocks.codes >> 4)
        return room.mul_(scales[..., :1]).add_(scales[..., 1:])
    return room.copy_(blocks.codes.view(torch.int8)).mul_(scales)


def _split(weight: torch.Tensor) -> torch.Tensor:
    return weight.reshape(weight.shape[0], -1, BLOCK)


def _four(values: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The grid from the smallest to the largest value of each block."""
    low, high = values.amin(dim=-1, keepdim=True), values.amax(dim=-1, keepdim=True)
    scales = torch.cat([(high - low) / 15, low], dim=-1).half()
    d, m = scales[..., :1].float(), scales[..., 1:].float()
    torch.sub(values, m, out=room).div_(torch.where(d == 0, 1.0, d)).round_().clamp_(0, 15)
    codes = room.to(torch.uint8)
    return torch.add(codes[..., :16], codes[..., 16:], alpha=16), scales


def _eight(values: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The grid from zero to the largest magnitude of each block."""
    scales = (torch.abs(values, out=room).amax(dim=-1, keepdim=True) / 127).half()
    return _signed(values, scales.float(), room), scales


def _rows(values: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The grid from zero to the largest magnitude of each row."""
    scales = torch.abs(values, out=room).amax(dim=(1, 2), keepdim=True) / 127
    return _signed(values, scales, room), scales


def _halves(values: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values.to(torch.bfloat16).contiguous().view(torch.uint8), values.new_empty(len(values), 0, 0)


def _signed(values: torch.Tensor, scales: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    codes = torch.div(values, torch.where(scales == 0, 1.0, scales), out=room).round_().clamp_(-127, 127)
    return codes.to(torch.int8).view(torch.uint8)


_ROUND = {Form.FOUR: _four, Form.EIGHT: _eight, Form.ROWS: _rows, Form.HALVES: _halves}
"""Codes and scales, as in ``Blocks``, of values (outputs, width / 32, 32), with room of that shape."""
