"""Building the learner: MaskablePPO or PPO with the residual policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

from agents.policy import MaskableResidualPolicy, ResidualPolicy, ScaledObservation
from agents.round_table import RoundTable
from agents.settings import AgentSettings
from runtime.control.observation import Observation

Learner: TypeAlias = MaskablePPO | PPO


def build_learner(
    settings: AgentSettings, vec_env: VecEnv, table: RoundTable, tensorboard: Path | None, seed: int
) -> Learner:
    """A fresh learner on the CPU (a small network is faster there, and the decode device stays free)."""
    n_steps = min(settings.n_steps, max(2, settings.total_timesteps // vec_env.num_envs))
    arguments: dict[str, Any] = {
        "env": vec_env,
        "learning_rate": lambda left: settings.learning_rate * left,
        "n_steps": n_steps,
        "batch_size": min(settings.batch_size, n_steps * vec_env.num_envs),
        "n_epochs": settings.n_epochs,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "ent_coef": settings.ent_coef,
        "clip_range": settings.clip_range,
        "target_kl": settings.target_kl,
        "tensorboard_log": str(tensorboard) if tensorboard else None,
        "seed": seed,
        "device": "cpu",
        "policy_kwargs": {
            "net_arch": list(settings.widths),
            "features_extractor_class": ScaledObservation,
            "features_extractor_kwargs": {
                "table": table if settings.residual else None,
                "prior": {"sharpness": settings.sharpness, "token_price": settings.token_price},
            },
        },
    }
    if settings.algorithm == "maskable_ppo":
        return MaskablePPO(MaskableResidualPolicy, **arguments)
    return PPO(ResidualPolicy, **arguments)


def predict(learner: Learner, observation: Observation) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The learner's deterministic action, by its own library; masked where the algorithm masks."""
    if isinstance(learner, MaskablePPO):
        action, _ = learner.predict(observation.vector, action_masks=observation.mask, deterministic=True)
    else:
        action, _ = learner.predict(observation.vector, deterministic=True)
    return np.asarray(action, dtype=np.int64)
