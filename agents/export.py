"""Export: the trained policy as one ONNX graph, from raw observation and mask to action.

Normalisation, prior, network, mask and the choice of the best legal value are all inside the graph, so nothing of
training is needed to run it.
"""

from __future__ import annotations

import io
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runtime.control.action import ActionCodec
from runtime.files import written_whole

FORBIDDEN = -1e8
"""Logit of an illegal value."""


class DeployGraph(nn.Module):
    """Observation float32 (1, D) and mask bool (1, M) to action int64 (1, 5)."""

    def __init__(self, policy: Any, codec: ActionCodec) -> None:
        super().__init__()
        self.features = policy.features_extractor
        self.network = policy.mlp_extractor
        self.head = policy.action_net
        self.slices = tuple(pairwise(codec.offsets))

    def forward(self, observation: Tensor, mask: Tensor) -> Tensor:
        """The most likely legal value of every dimension."""
        logits = self.head(self.network.forward_actor(self.features(observation)))
        logits = torch.where(mask, logits, torch.full_like(logits, FORBIDDEN))
        return torch.stack([logits[:, start:end].argmax(dim=1) for start, end in self.slices], dim=1)


def export_policy(policy: Any, codec: ActionCodec, observation_size: int, path: Path) -> None:
    """Write ``path`` as ONNX, aside first."""
    graph = DeployGraph(policy, codec).to("cpu").eval()
    example = (torch.zeros(1, observation_size), torch.ones(1, codec.offsets[-1], dtype=torch.bool))
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter warns of its own deprecations
        torch.onnx.export(
            graph,
            example,
            buffer,  # type: ignore[arg-type]  # documented to take a file object, typed not to
            input_names=["observation", "mask"],
            output_names=["action"],
            dynamo=False,
            opset_version=17,
        )
    with written_whole(path) as aside:
        aside.write_bytes(buffer.getvalue())
