"""The number formats a target can run in, by the name a user gives."""

from __future__ import annotations

import torch

from runtime.engine.native.install import usable
from runtime.errors import UserError

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
"""``int8`` keeps the linear layers' weights in at most 8 bit. Where there are compiled kernels
(``runtime.engine.native``) 32 weights share a scale, what they are multiplied with is rounded to 8 bit as well if the
processor multiplies such integers, and all else is in fp32. Without kernels, and on other devices, a row shares a scale
and all else is in bf16."""
AUTO_DTYPE = "auto"
"""The format that a profile was measured in."""


def parse_dtype(name: str) -> torch.dtype:
    """The format of a name.

    Raises:
        UserError: If there is no such format.
    """
    if name not in DTYPES:
        raise UserError(f"unknown dtype '{name}': expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def compute_dtype(dtype: torch.dtype, device: str = "cpu") -> torch.dtype:
    """What activations and KV are kept in, on a device."""
    if dtype != torch.int8:
        return dtype
    return torch.float32 if device == "cpu" and usable() else torch.bfloat16
