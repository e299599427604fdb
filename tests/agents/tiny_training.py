"""A training run of a few hundred decisions over a made-up world, and what is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from agents.checkpoints.file import Checkpoint
from agents.checkpoints.folder import find_checkpoint
from agents.checkpoints.tree import Arrays, pack
from agents.setup import agent_settings
from agents.training import Training
from tests.agents.test_policy import make_table
from tests.factories import make_world
from tests.tiny_zoo import composed

TOTAL = 192
TINY = (
    "agent=plain_network",
    f"agent.total_timesteps={TOTAL}",
    "agent.n_steps=16",
    "agent.batch_size=16",
    "agent.n_epochs=2",
    "agent.widths=[8]",
    "agent.learning_rate=0.01",
    "agent.ent_coef=0.01",
    "agent.eval_every=64",
    "agent.eval_streams=1",
    "++agent.checkpoint_every=32",
    "env.n_envs=2",
    "progress=false",
)


def tiny_training(folder: Path, *overrides: str, **changes: Any) -> Training:
    """A run in ``folder``; overrides come on top of ``TINY``, changes are fields of ``Training``."""
    config = composed("config", *TINY, *overrides)
    world = make_world(max_steps=40)
    values: dict[str, Any] = {
        "settings": agent_settings(config),
        "world": world,
        "make_env": world.env,
        "n_envs": config.env.n_envs,
        "table": make_table(),
        "folder": folder,
        "seed": config.seed,
        "config": OmegaConf.to_container(config, resolve=True),
        "inputs": {"traces": "made up"},
    }
    return Training(**{**values, **changes})


def last(folder: Path) -> Checkpoint:
    """The newest checkpoint of a run."""
    return find_checkpoint(folder).checkpoint


def remains(checkpoint: Checkpoint) -> tuple[Any, Arrays]:
    """State of a checkpoint without what wall clocks say, as JSON and arrays."""
    learner = dict(checkpoint.state["learner"])
    windows = {
        name: [{key: value for key, value in episode.items() if key != "t"} for episode in episodes]
        for name, episodes in learner.pop("windows").items()
    }
    envs = dict(checkpoint.state["envs"])
    envs["json"] = {key: value for key, value in envs.get("json", {}).items() if key != "elapsed_s"}
    return pack({**checkpoint.state, "envs": envs, "learner": {**learner, "windows": windows}})


def same(one: Checkpoint, other: Checkpoint) -> list[str]:
    """Where two checkpoints differ: nothing, if they are the same bit for bit."""
    (tree, arrays), (other_tree, other_arrays) = remains(one), remains(other)
    found = [] if tree == other_tree else ["plain values"]
    names = sorted(arrays.keys() | other_arrays.keys())
    return found + [
        name
        for name in names
        if name not in arrays or name not in other_arrays or not np.array_equal(arrays[name], other_arrays[name])
    ]
