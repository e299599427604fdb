"""Learning: PPO on replay or on the live decoder, validated on streams of the training prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.callbacks import ValidationCallback
from agents.evaluation import serve
from agents.ppo import Learner, build_learner
from agents.round_table import RoundTable
from agents.settings import AgentSettings
from envs.base import SpecEnv
from envs.world import ReplayWorld
from runtime.control.base import Controller
from runtime.control.static import plain_controller

VALIDATION_SEED = 10_000
"""Validation streams are drawn with this seed, training streams with the run's."""


@dataclass(frozen=True)
class Learned:
    """A trained policy.

    Attributes:
        learner: With the best validated weights.
        curve: (decisions, speed-up over plain on the validation streams).
    """

    learner: Learner
    curve: tuple[tuple[int, float], ...]


def make_judge(world: ReplayWorld, streams: int) -> Callable[[Controller], float]:
    """From a controller to its speed-up over plain decoding on validation streams."""
    chosen = world.streams(VALIDATION_SEED, streams)

    def seconds(controller: Controller) -> float:
        return sum(serve(controller, stream, world.session(), controller.name)[0].seconds for stream in chosen)

    plain_s = seconds(plain_controller(len(world.drafts)))
    return lambda controller: plain_s / seconds(controller)


def learn(
    settings: AgentSettings,
    world: ReplayWorld,
    make_env: Callable[[], SpecEnv],
    n_envs: int,
    table: RoundTable,
    folder: Path,
    seed: int,
    progress: bool,
) -> Learned:
    """Train and return the policy with the best validated weights.

    Args:
        settings: Hyperparameters.
        world: Replay world of the training split, for validation.
        make_env: Builds one training environment.
        n_envs: Environments stepped together.
        table: For the policy's prior.
        folder: Run folder; gets ``checkpoints/`` and ``tensorboard/``.
        seed: Of model and environments.
        progress: Whether to show a progress bar.
    """
    vec_env = DummyVecEnv([lambda: Monitor(make_env()) for _ in range(n_envs)])
    vec_env.seed(seed)
    learner = build_learner(settings, vec_env, table, None, seed)
    learner.set_logger(configure(str(folder / "tensorboard"), ["tensorboard"]))
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    callback = ValidationCallback(
        make_judge(world, settings.eval_streams),
        vec_env.envs[0].unwrapped.codec,  # type: ignore[attr-defined]
        settings.eval_every,
        checkpoints,
        settings.total_timesteps,
        progress,
    )
    threads = torch.get_num_threads()
    if n_envs > 1:
        torch.set_num_threads(1)  # a small network: threads cost more than they bring; the live target needs them
    try:
        learner.learn(settings.total_timesteps, callback=callback)
    finally:
        torch.set_num_threads(threads)
        vec_env.close()
    callback.load_best()
    return Learned(learner, tuple(callback.curve))
