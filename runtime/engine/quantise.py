"""Matrices as int8 with one scale a row: a quarter of fp32, read back in one multiplication."""

from __future__ import annotations

from typing import NamedTuple

import torch

INT8_MAX = 127


class Int8Matrix(NamedTuple):
    """A quantised matrix.

    Attributes:
        values: ``(rows, columns)`` int8.
        scale: ``(rows,)`` fp32; the matrix is ``values * scale[:, None]``.
    """

    values: torch.Tensor
    scale: torch.Tensor


def quantise(matrix: torch.Tensor) -> Int8Matrix:
    """Round every row to 255 levels; the error of an element is at most half its row's scale.

    Raises:
        ValueError: If ``matrix`` is not 2-D or holds a value that is not finite.
    """
    if matrix.dim() != 2:
        raise ValueError(f"expected a matrix, got shape {tuple(matrix.shape)}: keep other tensors as they are")
    matrix = matrix.detach().to("cpu", torch.float32)
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("expected finite weights, got inf or nan: lower the learning rate and train again")
    scale = (matrix.abs().amax(dim=1) / INT8_MAX).clamp(min=torch.finfo(torch.float32).tiny)
    values = (matrix / scale[:, None]).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
    return Int8Matrix(values, scale)


def dequantise(matrix: Int8Matrix) -> torch.Tensor:
    """The fp32 matrix, ``(rows, columns)``."""
    return matrix.values.to(torch.float32).mul_(matrix.scale[:, None])  # in place: one matrix in memory, not two
