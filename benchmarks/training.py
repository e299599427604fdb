"""How fast replay and learning are, in one run: ``make bench-train``.

Interleaved, medians over rounds, so that a slow moment of the machine hits all alike:

* one environment stepping the shared session, random legal decisions;
* the batched replay, random legal decisions (choosing them is not counted, for neither);
* PPO end to end on the batched replay with the configuration's agent: rollout and update;
* stable-baselines3's PPO on CartPole with the same number of environments, steps, batch, passes and widths.

Writes ``outputs/bench-training.json``. Overrides of the configuration follow the options, as for ``train.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.ppo import build_learner
from agents.settings import AgentSettings
from agents.setup import PROJECT, Setting, agent_settings, prepare, round_table
from envs.base import SpecEnv
from envs.batched import BatchedReplay
from runtime.bundle import library_versions
from runtime.control.action import ActionCodec, BoolMask
from runtime.device import device_name
from runtime.errors import UserError
from runtime.files import write_json
from runtime.threads import usable_threads
from runtime.timing import Timed, median_of

SINGLE_STEPS = 1000
"""Steps of the single environment in a round."""
BATCHED_STEPS = 200_000
"""Steps of the batched replay in a round, all streams together; about."""

Actions = np.ndarray[Any, np.dtype[np.int64]]
Piece = Callable[[], float]
"""Runs a piece of work once and returns its steps a second."""


@dataclass(frozen=True)
class Size:
    """Sizes of a run: environments, their decisions in a rollout, and rounds."""

    n_envs: int
    n_steps: int
    rounds: int


def random_legal(masks: BoolMask, codec: ActionCodec, rng: np.random.Generator) -> Actions:
    """Any legal value of every dimension, by row of ``masks``; shape (rows, 5)."""
    actions = np.empty((len(masks), len(codec.nvec)), dtype=np.int64)
    for dimension, (start, end) in enumerate(zip(codec.offsets, codec.offsets[1:], strict=False)):
        drawn = rng.random((len(masks), end - start), dtype=np.float32)
        drawn[~masks[:, start:end]] = -1.0
        actions[:, dimension] = drawn.argmax(1)
    return actions


def single_piece(env: SpecEnv) -> Piece:
    """One environment; resets count, as they do for the batched replay."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)

    def run() -> float:
        spent_s = 0.0
        for _ in range(SINGLE_STEPS):
            action = random_legal(env.action_masks()[None], env.codec, rng)[0]
            before_s = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
            spent_s += time.perf_counter() - before_s
        return SINGLE_STEPS / spent_s

    return run


def batched_piece(envs: BatchedReplay) -> Piece:
    """All streams."""
    rng, steps = np.random.default_rng(0), max(1, BATCHED_STEPS // envs.num_envs)
    envs.seed(0)
    envs.reset()
    for _ in range(_spread(envs)):  # episodes end at different times, as they do in training
        envs.step(random_legal(envs.masks(), envs.codec, rng))

    def run() -> float:
        spent_s = 0.0
        for _ in range(steps):
            actions = random_legal(envs.masks(), envs.codec, rng)
            before_s = time.perf_counter()
            envs.step(actions)
            spent_s += time.perf_counter() - before_s
        return steps * envs.num_envs / spent_s

    return run


def _spread(envs: BatchedReplay) -> int:
    """Steps after which about every stream has ended once: 80 decisions a request."""
    return 80 * envs.worlds[0].workload.requests


def learning_piece(learner: Any, size: Size) -> Piece:
    """Rollouts and updates of any on-policy learner of stable-baselines3."""
    learner.set_logger(configure(None, []))
    steps = size.n_envs * size.n_steps
    learner.learn(steps)

    def run() -> float:
        before_s = time.perf_counter()
        learner.learn(steps, reset_num_timesteps=False)
        return steps / (time.perf_counter() - before_s)

    return run


def our_learner(setting: Setting, settings: AgentSettings, envs: BatchedReplay) -> Any:
    """The configuration's agent; every update makes all its passes."""
    return build_learner(dataclasses.replace(settings, target_kl=None), envs, round_table(setting), 0)


def cartpole_learner(settings: AgentSettings, size: Size) -> PPO:
    """stable-baselines3's own, of the same sizes."""
    envs = DummyVecEnv([lambda: Monitor(gym.make("CartPole-v1")) for _ in range(size.n_envs)])
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=size.n_steps,
        batch_size=settings.batch_size,
        n_epochs=settings.n_epochs,
        policy_kwargs={"net_arch": list(settings.widths)},
        device="cpu",
        seed=0,
    )


def measure(config: DictConfig, size: Size) -> dict[str, Any]:
    """Everything, as one JSON object."""
    setting = prepare(config)
    settings = dataclasses.replace(agent_settings(config), n_steps=size.n_steps, total_timesteps=10**9)
    begun_s = time.perf_counter()
    batched = BatchedReplay(setting.train, size.n_envs)
    batched.reset()
    ready_s = time.perf_counter() - begun_s
    pieces = {
        "single": single_piece(setting.train.env()),
        "batched": batched_piece(batched),
        "ppo": learning_piece(our_learner(setting, settings, BatchedReplay(setting.train, size.n_envs)), size),
        "cartpole": learning_piece(cartpole_learner(settings, size), size),
    }
    samples: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(size.rounds):
        for name, piece in pieces.items():
            samples[name].append(piece())
    found = {name: median_of(values) for name, values in samples.items()}
    return {
        "schema": 1,
        "device": device_name(),
        "cores": os.cpu_count(),
        "threads": usable_threads(),
        "versions": library_versions("torch", "numpy", "numba", "stable-baselines3", "sb3-contrib", "gymnasium"),
        "n_envs": size.n_envs,
        "n_steps": size.n_steps,
        "batch_size": settings.batch_size,
        "n_epochs": settings.n_epochs,
        "widths": list(settings.widths),
        "rounds": size.rounds,
        "ready_s": ready_s,
        "steps_per_second": {name: _row(timed) for name, timed in found.items()},
        "batched_over_single": found["batched"].seconds / found["single"].seconds,
        "ppo_over_cartpole": found["ppo"].seconds / found["cartpole"].seconds,
    }


def _row(rate: Timed) -> dict[str, float]:
    return {"median": rate.seconds, "spread": rate.spread}


def show(result: dict[str, Any]) -> None:
    """Print the result."""
    labels = {
        "single": "one environment",
        "batched": "batched replay",
        "ppo": "PPO on the batched replay",
        "cartpole": "stable-baselines3's PPO on CartPole",
    }
    for name, rate in result["steps_per_second"].items():
        print(f"{labels[name]:36s} {rate['median']:10,.0f} steps/s  (± {rate['spread']:,.0f})")
    print(f"batched / one environment: {result['batched_over_single']:.0f}×")
    print(f"batched replay ready after {result['ready_s']:.1f} s ({result['n_envs']} environments)")


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--envs", type=int, default=1024, help="environments stepped together")
    parser.add_argument("--steps", type=int, default=32, help="decisions of each in a rollout")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are over these")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench-training.json"), help="file to write")
    parser.add_argument("overrides", nargs="*", help="of the configuration: key=value")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in training; updates take more
    with initialize_config_dir(version_base=None, config_dir=str(PROJECT / "conf")):
        config = compose("config", ["progress=false", *options.overrides])
    try:
        result = measure(config, Size(options.envs, options.steps, options.rounds))
    except UserError as error:
        print(f"bench-train: {error}", file=sys.stderr)
        return 2
    show(result)
    write_json(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
