"""A run between two rollouts: taken down, and put back."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from agents.checkpoints.file import Checkpoint
from agents.checkpoints.generators import random_state, restore_random
from agents.checkpoints.learner import learner_state, restore_learner
from agents.ppo import Learner
from agents.report.revision import git_revision
from agents.training import Training
from agents.training_envs import SteppedEnvs, TrainingEnvs
from agents.watching.standing import Standing
from runtime.bundle import library_versions
from runtime.errors import UserError

LIBRARIES = ("torch", "numpy", "stable-baselines3", "sb3-contrib", "gymnasium")
"""Weights are the same bit for bit only with the same versions of these, on the same machine."""


@cache
def code_revision() -> str:
    """Revision of the code when this process first asked."""
    return git_revision()


def capture(training: Training, learner: BaseAlgorithm, envs: TrainingEnvs, standing: Standing) -> Checkpoint:
    """Everything of a run between two rollouts."""
    return Checkpoint(
        decisions=learner.num_timesteps,
        total=training.settings.total_timesteps,
        config=dict(training.config),
        inputs=dict(training.inputs),
        code=code_revision(),
        libraries=library_versions(*LIBRARIES),
        state={
            "learner": learner_state(learner),
            "random": random_state(),
            "envs": envs.state_dict(),
            "standing": standing.state_dict(),
        },
    )


def go_on(training: Training, learner: Learner, envs: TrainingEnvs, checkpoint: Checkpoint) -> Standing:
    """Put a fresh learner, its environments and the random generators where a checkpoint stands.

    Raises:
        UserError: If the run reads other files than the checkpoint's, or its weights or environments do not fit.
    """
    changed = [
        f"{what} was {was[:12]}, now {training.inputs.get(what, 'missing')[:12]}"
        for what, was in checkpoint.inputs.items()
        if training.inputs.get(what) != was
    ]
    if changed:
        raise UserError(f"the run cannot go on with other files than it began with: {'; '.join(changed)}")
    state = checkpoint.state
    try:
        restore_learner(learner, state["learner"])
        if training.live and isinstance(envs, SteppedEnvs):
            learner._last_obs = envs.redraw(state["envs"])
            learner._last_episode_starts = np.ones(envs.num_envs, dtype=bool)
        else:
            envs.load_state_dict(state["envs"])
            _refuse_another_course(envs, learner)
    except (ValueError, KeyError, IndexError, RuntimeError, AttributeError) as error:
        raise UserError(
            f"the checkpoint of {checkpoint.decisions} decisions, written by code {checkpoint.code}, does not fit this "
            f"code ({code_revision()}): {error}. Resume with the code that wrote it, or start a new run"
        ) from error
    restore_random(state["random"])
    return Standing.of_state(state["standing"])


def _refuse_another_course(envs: TrainingEnvs, learner: Any) -> None:
    """Environments that took the same decisions must see what was seen before."""
    buffered: Any = getattr(envs, "buf_obs", None)
    if buffered is not None and not np.array_equal(buffered[None], learner._last_obs):
        raise ValueError("the environments came to another state by the same decisions")


def differences(checkpoint: Checkpoint) -> list[str]:
    """Of the code and the libraries, from those that wrote a checkpoint: results may differ then. One line each."""
    now = {"code": code_revision(), **library_versions(*LIBRARIES)}
    then = {"code": checkpoint.code, **checkpoint.libraries}
    return [f"{what} was {was}, now {now.get(what)}" for what, was in then.items() if now.get(what) != was]
