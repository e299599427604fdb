"""Where training starts from besides the heuristic: another run's weights, or a controller to imitate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.checkpoints.folder import find_checkpoint
from agents.heuristic import HeuristicController
from agents.imitation import Teacher, imitate_teacher
from agents.learners.branching import BranchingDQN
from agents.oracle_teacher import OracleTeacher
from agents.paths import project_path
from agents.ppo import Learner
from agents.round_table import RoundTable
from agents.settings import AgentSettings
from envs.world import ReplayWorld
from runtime.bundle import BUNDLE_MANIFEST, POLICY, read_bundle
from runtime.errors import UserError

BUNDLE_COUNT = 100_000
"""Observations that a bundle's statistics count for: it does not say how many stand behind them."""

LOGGER = logging.getLogger(__name__)
TEACHERS = ("heuristic", "oracle")
ALIASES = ("pi_features_extractor.", "vf_features_extractor.")
"""Second names of the same tensors."""
NOT_LEARNED = ("features_extractor.prior.", "features_extractor.table_scale")
"""Belong to the zoo, its traces and the feature table, not to what was learned."""
STATISTICS = ("features_extractor.mean", "features_extractor.variance", "features_extractor.count")
VALUE_SIDE = ("value_net.", "mlp_extractor.value_net.", "lstm_critic.")
"""What training alone needs; a bundle does not hold it."""
Weights = Mapping[str, Tensor]


def warm_start(
    learner: Learner, settings: AgentSettings, world: ReplayWorld, table: RoundTable, seed: int, progress: bool
) -> None:
    """Put the learner where ``agent.warm_start`` says; it must be fresh.

    Args:
        learner: From ``build_learner``.
        settings: Its settings.
        world: Replay world of the training split, for demonstrations.
        table: Of the prior.
        seed: Of the run.
        progress: Whether to show progress bars.

    Raises:
        UserError: If there are no such weights, or they do not fit.
    """
    source = settings.warm_start
    if source is None:
        return
    if source in TEACHERS:
        teacher: Teacher = partial(OracleTeacher, world)
        if source == "heuristic":
            heuristic = HeuristicController(table, settings.token_price)
            teacher = lambda stream: heuristic  # noqa: E731 - the same for every stream
        streams, epochs = settings.imitation_streams, settings.imitation_epochs
        share = imitate_teacher(learner.policy, teacher, world, streams, epochs, seed, progress)
        LOGGER.info("warm start: decides as the %s in %.1f%% of decisions on other streams", source, 100.0 * share)
    else:
        load_weights(learner.policy, read_weights(project_path(source)), source)
    if isinstance(learner, BranchingDQN):
        learner.target.load_state_dict(learner.policy.state_dict())


def read_weights(place: Path) -> Weights:
    """Weights of a bundle (its policy alone), of a run folder or checkpoint (the best validated, if there is one).

    Raises:
        UserError: If there is neither.
    """
    if (place / BUNDLE_MANIFEST).is_file():
        return _of_graph(read_bundle(place).folder / POLICY)
    state = find_checkpoint(place).checkpoint.state
    best = state["standing"]["best_weights"]
    kept = state["learner"]["parameters"]["policy"] if best is None else best["policy"]
    return {name: torch.as_tensor(np.asarray(value)) for name, value in kept.items()}


def _of_graph(path: Path) -> Weights:
    """The graph's weights by the policy's own names. Of equal ones the export keeps one, and names the others."""
    import onnx

    graph = onnx.load(str(path)).graph
    found = {tensor.name: torch.as_tensor(onnx.numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    same = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    return found | {name: found[kept].clone() for name, kept in same.items() if kept in found}


def load_weights(policy: Any, weights: Weights, source: str = "these weights") -> None:
    """Put weights into a policy, which may be of another zoo if the network is equivariant.

    Args:
        policy: Any of ``agents.policy``.
        weights: By name, as in ``policy.state_dict()``; the value network and statistics may be missing.
        source: What they are called in messages.

    Raises:
        UserError: If what decides is missing, of another shape, or was trained with another normalisation.
    """
    own = {name: value for name, value in policy.state_dict().items() if not name.startswith((*ALIASES, *NOT_LEARNED))}
    found = {name: value for name, value in weights.items() if name in own}
    missing = [name for name in own if name not in found and not name.startswith((*VALUE_SIDE, *STATISTICS))]
    wrong = [
        f"{name} is {tuple(value.shape)}, expected {tuple(own[name].shape)}"
        for name, value in found.items()
        if value.shape != own[name].shape
    ]
    if missing or wrong:
        raise UserError(
            f"agent.warm_start: {source} does not fit this network and zoo ({'; '.join([*wrong, *missing][:3])}): use "
            "the same agent.network, agent.residual and agent.widths; for a zoo of another size train with "
            "agent.network=equivariant"
        )
    _same_normalisation(policy, weights, source)
    with torch.no_grad():
        for name, value in found.items():
            own[name].copy_(value)
        if policy.features_extractor.running and STATISTICS[2] in own and STATISTICS[2] not in found:
            own[STATISTICS[2]].fill_(BUNDLE_COUNT)
    if not any(name.startswith(VALUE_SIDE) for name in found):
        LOGGER.info("warm start: %s holds no value network, it starts anew", source)


def _same_normalisation(policy: Any, weights: Weights, source: str) -> None:
    count = weights.get(STATISTICS[2])
    running = STATISTICS[0] in weights if count is None else bool(count.item() > 0)
    if running != policy.features_extractor.running:
        used = "running" if running else "table"
        raise UserError(f"agent.warm_start: {source} was trained with agent.normalise={used}: use that here too")
