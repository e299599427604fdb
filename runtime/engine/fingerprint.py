"""Which target a draft belongs to: a short hash of the target's weights, whatever file they came from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

SAMPLES = 1024
"""Values read of every tensor; enough to tell fine-tunes apart, a few milliseconds for a small target."""


@torch.no_grad()
def target_fingerprint(model: nn.Module) -> str:
    """SHA-256 (hex) over name, shape and evenly spread values of every parameter.

    Values are rounded to bf16 first, so that the same weights loaded in fp32 or bf16 have one fingerprint. Drafts read
    the target's embedding table, so a draft of one target is of no use to another.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLES)].to("cpu", torch.bfloat16).contiguous()
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
