"""Export: the trained policy as one ONNX graph, from raw observation and mask to action.

Normalisation, prior, network, trimming, mask and the choice of the best legal value are all inside the graph, so
nothing of training is needed to run it. A policy with a memory reads it as two more inputs and gives it back as two
more outputs of the same shape; at the start of a stream both are zero.

The graph is for one observation at a time, and of few nodes: each costs a microsecond or two on a device whose caches
the models have just used (``docs/deploy.md``, what a decision costs).
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
from agents.deploy_prior import DeployPrior
from agents.policy import SplitMlp
from runtime.control.action import ActionCodec
from runtime.files import written_whole

MEMORY = ("hidden", "cell")
"""Inputs that carry a policy's memory; the outputs are named ``next_hidden`` and ``next_cell``."""


class DeployGraph(nn.Module):
    """Observation float32 (1, D) and mask bool (1, M) to action int64 (1, 5); weights keep the policy's own names."""

    places: Tensor
    forbidden: Tensor

    def __init__(self, policy: Any, codec: ActionCodec) -> None:
        super().__init__()
        self.features_extractor = policy.features_extractor
        self.lstm_actor = getattr(policy, "lstm_actor", None)
        self.mlp_extractor = policy.mlp_extractor
        self.action_net = policy.action_net
        self.trimming = policy.trimming
        prior = policy.features_extractor.prior
        self.prior = None if prior is None else DeployPrior(prior)
        self.register_buffer("places", _places(codec), persistent=False)
        self.register_buffer("forbidden", torch.tensor([[FORBIDDEN]]), persistent=False)

    def forward(self, observation: Tensor, mask: Tensor, *memory: Tensor) -> Any:
        """The most likely legal value of every dimension; with a memory also what it is then, (layers, 1, width)."""
        features = self.features_extractor.normalised(observation)
        scores = None if self.prior is None else self.prior(observation)
        after: tuple[Tensor, ...] = ()
        if self.lstm_actor is not None:
            features = features if scores is None else torch.cat([features, scores], dim=1)
            output, after = self.lstm_actor(features.unsqueeze(0), memory)
            features = output.squeeze(0)
        logits = self._logits(features, scores)
        legal = mask if self.trimming is None else self.trimming(mask)
        action = torch.where(legal, logits, self.forbidden)[:, self.places].argmax(dim=2)
        return (action, *after) if after else action

    def _logits(self, features: Tensor, scores: Tensor | None) -> Tensor:
        """What the network makes of its features and the prior's scores, (1, M)."""
        read = features if scores is None else torch.cat([features, scores], dim=1)
        logits: Tensor
        if not isinstance(self.mlp_extractor, SplitMlp):
            logits = self.action_net(self.mlp_extractor.forward_actor(read))
        elif scores is None:
            logits = self.action_net(self.mlp_extractor.policy_net(read))
        else:  # the scores go past the network to its head: not packed up with the hidden values on their way here
            logits = scores + self.action_net.correction(self.mlp_extractor.policy_net(read))
        return logits

    def memory(self) -> tuple[Tensor, ...]:
        """What the memory is at the start of a stream; empty without one."""
        if self.lstm_actor is None:
            return ()
        return (torch.zeros(self.lstm_actor.num_layers, 1, self.lstm_actor.hidden_size),) * 2


def _places(codec: ActionCodec) -> Tensor:
    """Where the values of every dimension are, (5, widest): shorter dimensions repeat their first value at the end.

    The best of a row is the first of its best, so a repetition is never chosen.
    """
    widest = max(codec.nvec)
    rows = [[*range(start, end), *[start] * (widest - end + start)] for start, end in pairwise(codec.offsets)]
    return torch.tensor(rows)


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
            # Folded weights would lose their names, and with them their way back (agents.warm_start). onnxruntime
            # folds what it can when it opens the graph, and a node of constants costs nothing then.
            do_constant_folding=False,
        )
    with written_whole(path) as aside:
        aside.write_bytes(buffer.getvalue())
