"""Which target a draft belongs to: a short hash of the target's weights, whatever file they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

SAMPLES = 1024
"""Values read of every tensor; enough to tell fine-tunes apart, a few milliseconds for a small target."""


def target_fingerprint(model: nn.Module) -> str:
    """SHA-256 (hex) over name, shape and evenly spread values of every parameter.

    Values are rounded to bf16 first, so that the same weights loaded in fp32 or bf16 have one fingerprint; a copy in
    fp16 that was not rounded to bf16 before may differ. Take it before packing or quantising.

    It is also what stands for the tokenizer: a draft reads through the target's embedding table and was bound to this
    hash when it was distilled, so its token ids mean the target's rows whatever a tokenizer file says.
    """
    return fingerprint_of(sorted(model.named_parameters()))


@torch.no_grad()
def fingerprint_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The same of parameters that need not be in a model, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in parameters:
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLES)].to("cpu", torch.bfloat16).contiguous()
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
