"""What one run of training is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.round_table import RoundTable
from agents.settings import AgentSettings
from envs.base import SpecEnv
from envs.world import ReplayWorld


@dataclass(frozen=True)
class Training:
    """One run of training.

    Attributes:
        settings: Hyperparameters.
        world: Replay world of the training split; validation streams are drawn from it.
        make_env: Builds one training environment.
        n_envs: Environments stepped together.
        table: For the policy's prior.
        folder: Run folder; gets ``checkpoints/`` and ``tensorboard/``.
        seed: Of the model, the environments and the validation streams.
        config: The configuration as plain values; goes into checkpoints and tensorboard.
        inputs: Fingerprints of the files that training reads, by what they are.
        batched: Whether all streams are stepped at once.
        worlds: What is replayed then, e.g. a fleet's; none = ``world``.
        live: Whether the environment runs on the wall clock: then its episodes cannot be gone on with.
        progress: Whether to show a progress bar.
    """

    settings: AgentSettings
    world: ReplayWorld
    make_env: Callable[[], SpecEnv]
    n_envs: int
    table: RoundTable
    folder: Path
    seed: int
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    batched: bool = False
    worlds: tuple[ReplayWorld, ...] = ()
    live: bool = False
    progress: bool = False
