"""Which runner a network gets."""

from __future__ import annotations

import logging
import os

import torch
from transformers import PreTrainedModel

from runtime.engine.graphs.base import Runner, Step
from runtime.engine.graphs.eager import EagerRunner
from runtime.engine.graphs.recorder import CudaRecorder
from runtime.engine.graphs.runner import GraphRunner

LOGGER = logging.getLogger(__name__)

SWITCH = "SPECPILOT_GRAPHS"
"""Environment variable; 0 = no graphs."""
MASKED = ("sdpa", "eager")
"""Attention that takes a mask over all rows of a cache; others want to know where the rows end."""


def wanted(device: torch.device) -> bool:
    """Whether networks on a device get graphs if they can."""
    return device.type == "cuda" and os.environ.get(SWITCH) != "0"


def choose_runner(step: Step, device: torch.device, graphs: bool | None = None) -> Runner:
    """A runner with an empty sequence.

    Args:
        step: What is run.
        device: Where it computes.
        graphs: Whether narrow forwards are fixed, and on CUDA recorded; None = on CUDA, unless ``SWITCH`` is 0. A
            network that cannot be recorded never is.
    """
    if graphs is None:
        graphs = wanted(device)
    if graphs and not _recordable(step.network):
        LOGGER.info("%s cannot be recorded as a CUDA graph: every kernel is started anew", type(step.network).__name__)
        graphs = False
    if not graphs:
        return EagerRunner(step, device)
    return GraphRunner(step, device, CudaRecorder(device) if device.type == "cuda" else None)


def _recordable(network: PreTrainedModel) -> bool:
    """Whether transformers says that a forward is the same operations for every text, with a mask over all rows."""
    return bool(network._can_compile_fullgraph) and network.config._attn_implementation in MASKED
