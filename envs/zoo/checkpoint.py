"""A training's state after an epoch, as safetensors: weights and both moments of AdamW. No pickle."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        epoch: Finished epochs.
        step: Finished optimiser steps.
        losses: Mean loss of each finished epoch, nats a token.
    """

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)


def save_checkpoint(path: Path, key: str, net: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write the state aside, then rename it.

    Args:
        path: The file.
        key: Fingerprint of the training's settings; ``load_checkpoint`` accepts no other.
        net: Its trainable parameters are kept.
        optimizer: AdamW over those parameters, after at least one step.
        progress: How far the training is.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in net.named_parameters():
        state = optimizer.state[parameter]
        tensors[f"weight.{name}"] = parameter.detach().contiguous()
        tensors[f"mean.{name}"] = state["exp_avg"]
        tensors[f"square.{name}"] = state["exp_avg_sq"]
    metadata = {"key": key, "progress": json.dumps(progress.__dict__)}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save_file(tensors, aside, metadata=metadata)
    aside.replace(path)


def load_checkpoint(path: Path, key: str, net: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put the state back into ``net`` and ``optimizer``; a fresh start if there is none, or one of other settings."""
    if not path.exists():
        return Progress()
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return Progress()
            progress = Progress(**json.loads(metadata["progress"]))
            for name, parameter in net.named_parameters():
                parameter.data.copy_(file.get_tensor(f"weight.{name}"))
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(progress.step)),
                    "exp_avg": file.get_tensor(f"mean.{name}"),
                    "exp_avg_sq": file.get_tensor(f"square.{name}"),
                }
    except SafetensorError:
        return Progress()
    return progress
