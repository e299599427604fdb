"""The number formats a target can run in, by the name a user gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.errors import UserError

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", "int8")
"""Names of torch's. ``int8`` keeps the linear layers' weights in at most 8 bit. Where there are compiled kernels
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
    refuse_unless_dtype(name)
    import torch  # here, because the import takes seconds, and names are known without it

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def refuse_unless_dtype(name: str) -> None:
    """Make sure that there is a format of that name.

    Raises:
        UserError: If there is none.
    """
    if name not in DTYPES:
        raise UserError(f"unknown dtype '{name}': expected one of {', '.join(DTYPES)}")


def compute_dtype(dtype: torch.dtype, device: str = "cpu") -> torch.dtype:
    """What activations and KV are kept in, on a device."""
    import torch

    from runtime.engine.native.install import usable

    if dtype != torch.int8:
        return dtype
    return torch.float32 if device == "cpu" and usable() else torch.bfloat16
