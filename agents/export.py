"""Export: the trained policy as one ONNX graph, from raw observation and mask to action.

Normalisation, prior, network, trimming, mask and the choice of the best legal value are all inside the graph, so
nothing of training is needed to run it. A policy with a memory reads it as two more inputs and gives it back as two
more outputs of the same shape; at the start of a stream both are zero.
"""

from __future__ import annotations

import io
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agents.choices import FORBIDDEN
from runtime.control.action import ActionCodec
from runtime.files import written_whole

MEMORY = ("hidden", "cell")
"""Inputs that carry a policy's memory; the outputs are named ``next_hidden`` and ``next_cell``."""


class DeployGraph(nn.Module):
    """Observation float32 (1, D) and mask bool (1, M) to action int64 (1, 5); weights keep the policy's own names."""

    def __init__(self, policy: Any, codec: ActionCodec) -> None:
        super().__init__()
        self.features_extractor = policy.features_extractor
        self.lstm_actor = getattr(policy, "lstm_actor", None)
        self.mlp_extractor = policy.mlp_extractor
        self.action_net = policy.action_net
        self.trimming = policy.trimming
        self.slices = tuple(pairwise(codec.offsets))

    def forward(self, observation: Tensor, mask: Tensor, *memory: Tensor) -> Any:
        """The most likely legal value of every dimension; with a memory also what it is then, (layers, 1, width)."""
        features = self.features_extractor(observation)
        after: tuple[Tensor, ...] = ()
        if self.lstm_actor is not None:
            output, after = self.lstm_actor(features.unsqueeze(0), memory)
            scores = self.mlp_extractor.scores
            features = torch.cat([output.squeeze(0), features[:, features.shape[1] - scores :]], dim=1)
        logits = self.action_net(self.mlp_extractor.forward_actor(features))
        legal = mask if self.trimming is None else self.trimming(mask)
        logits = torch.where(legal, logits, torch.full_like(logits, FORBIDDEN))
        action = torch.stack([logits[:, start:end].argmax(dim=1) for start, end in self.slices], dim=1)
        return (action, *after) if after else action

    def memory(self) -> tuple[Tensor, ...]:
        """What the memory is at the start of a stream; empty without one."""
        if self.lstm_actor is None:
            return ()
        return (torch.zeros(self.lstm_actor.num_layers, 1, self.lstm_actor.hidden_size),) * 2


def export_policy(policy: Any, codec: ActionCodec, observation_size: int, path: Path) -> None:
    """Write ``path`` as ONNX, aside first."""
    graph = DeployGraph(policy, codec).to("cpu").eval()
    memory = graph.memory()
    names = MEMORY[: len(memory)]
    example = (torch.zeros(1, observation_size), torch.ones(1, codec.offsets[-1], dtype=torch.bool), *memory)
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter warns of its own deprecations
        torch.onnx.export(
            graph,
            example,
            buffer,  # type: ignore[arg-type]  # documented to take a file object, typed not to
            input_names=["observation", "mask", *names],
            output_names=["action", *(f"next_{name}" for name in names)],
            dynamo=False,
            opset_version=17,
            do_constant_folding=False,  # folded weights would lose their names, and with them their way back
        )
    with written_whole(path) as aside:
        aside.write_bytes(buffer.getvalue())
