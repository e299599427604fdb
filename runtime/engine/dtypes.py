"""The number formats a target can run in, by the name a user gives."""

from __future__ import annotations

import torch

from runtime.errors import UserError

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
"""``int8`` keeps the linear layers' weights in 8 bit, with a scale per row, and computes in bf16."""


def parse_dtype(name: str) -> torch.dtype:
    """The format of a name.

    Raises:
        UserError: If there is no such format.
    """
    if name not in DTYPES:
        raise UserError(f"unknown dtype '{name}': expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What activations and KV are kept in."""
    return torch.bfloat16 if dtype == torch.int8 else dtype
