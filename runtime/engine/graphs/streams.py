"""The CUDA streams beside the one that decodes, one of each kind for a device.

They are made once: ``torch.cuda.Stream`` hands out 32 streams in turn, and a load must never land on the stream that a
recording is made on.
"""

from __future__ import annotations

from functools import cache

import torch


@cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Where recordings are made."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def upload_stream(device: torch.device) -> torch.cuda.Stream:
    """Where weights are copied to the device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
