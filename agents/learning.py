"""Learning: a policy on replay or on the live decoder, validated, watched, and kept in checkpoints to go on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from stable_baselines3.common.callbacks import BaseCallback

from agents.checkpoints.callback import CheckpointCallback
from agents.checkpoints.file import Checkpoint
from agents.checkpoints.folder import CheckpointFolder
from agents.checkpoints.learner import restore_weights
from agents.checkpoints.run import capture, go_on
from agents.ppo import Learner, build_learner
from agents.training import Training
from agents.training_envs import TrainingEnvs, build_envs
from agents.warm_start import warm_start
from agents.watching.events import open_logger, record_config
from agents.watching.progress import ProgressCallback, progress_bar
from agents.watching.scalars import ScalarsCallback
from agents.watching.standing import Standing
from agents.watching.validation import Judge, ValidationCallback
from runtime.control.action import ActionCodec

OFF_POLICY_RECORD = 1000
"""Decisions between two records of a learner whose rollouts are a few decisions long."""


@dataclass(frozen=True)
class Learned:
    """A trained policy.

    Attributes:
        learner: With the weights that ``agent.keep`` names.
        curve: (decisions, speed-up over plain on the validation streams).
    """

    learner: Learner
    curve: tuple[tuple[int, float], ...]


def learn(training: Training, checkpoint: Checkpoint | None = None) -> Learned:
    """Train and return the policy, with the weights that ``agent.keep`` names.

    Args:
        training: The run.
        checkpoint: Of the same run, to go on from; None = from the start.

    Raises:
        UserError: If the checkpoint does not fit the run.
    """
    settings = training.settings
    worlds = training.worlds or (training.world,)
    vec_env, envs = build_envs(training.make_env, worlds, training.n_envs, training.batched, training.seed)
    with _threads(training.live):
        try:
            learner = build_learner(settings, vec_env, training.table, training.seed)
            if checkpoint is None:
                standing = Standing()
                warm_start(learner, settings, training.world, training.table, training.seed, training.progress)
            else:
                standing = go_on(training, learner, envs, checkpoint)
            if not standing.exhausted(settings.patience):
                _learn(training, learner, envs, standing)
        finally:
            vec_env.close()
    if settings.keep == "best" and standing.best_weights is not None:
        restore_weights(learner, standing.best_weights)
    return Learned(learner, tuple(standing.curve))


def _learn(training: Training, learner: Learner, envs: TrainingEnvs, standing: Standing) -> None:
    total, begun, resumed = training.settings.total_timesteps, learner.num_timesteps, bool(standing.curve)
    logger = open_logger(training.folder / "tensorboard", begun if resumed else None)
    learner.set_logger(logger)
    record_config(logger, training.config, begun)
    with progress_bar(total, begun, training.progress) as bar:
        callbacks = _callbacks(training, learner, envs, standing)
        try:
            left = max(0, total - begun)  # stable-baselines3 adds what was done before
            learner.learn(left, callback=[*callbacks, ProgressCallback(bar, standing)], reset_num_timesteps=not resumed)
        finally:
            logger.close()


def _callbacks(
    training: Training, learner: Learner, envs: TrainingEnvs, standing: Standing
) -> tuple[BaseCallback, ...]:
    """In this order: what an update did is recorded before validation, and all of it is written before a checkpoint."""
    settings, begun, resumed = training.settings, learner.num_timesteps, bool(standing.curve)
    folder = CheckpointFolder(training.folder)
    folder.clean(begun if resumed else -1)
    checkpoints = CheckpointCallback(
        folder,
        lambda model: capture(training, model, envs, standing),
        standing,
        settings.checkpoint_every,
        settings.patience,
    )
    if resumed:
        checkpoints.resume_from(begun)
    judge = Judge(training.world, settings.eval_streams, training.seed)
    codec = ActionCodec(len(training.world.drafts))
    return (
        ScalarsCallback(envs, 1 if hasattr(learner, "rollout_buffer") else OFF_POLICY_RECORD),
        ValidationCallback(judge, codec, standing, settings.eval_every, settings.patience, settings.min_gain),
        checkpoints,
    )


@contextmanager
def _threads(live: bool) -> Iterator[None]:
    """One thread for a small network: more cost more than they bring. The live target needs them."""
    threads = torch.get_num_threads()
    if not live:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
