"""Building the learner that the settings name."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

from agents.features import ScaledObservation
from agents.learners.branching import BranchingDQN
from agents.learners.rollouts import ScheduledMaskablePPO, ScheduledPPO, ScheduledRecurrentPPO
from agents.policy import MaskableResidualPolicy, RecurrentResidualPolicy, ResidualPolicy
from agents.round_table import RoundTable
from agents.schedules import Schedule
from agents.settings import AgentSettings
from runtime.control.observation import Observation
from runtime.errors import UserError
from runtime.threads import usable_threads

Learner: TypeAlias = MaskablePPO | PPO | RecurrentPPO | BranchingDQN


def build_learner(settings: AgentSettings, vec_env: VecEnv, table: RoundTable, seed: int) -> Learner:
    """A fresh learner on the CPU (a small network is faster there, and the decode device stays free).

    Raises:
        UserError: If a trimmed action set needs a draft that is not named or not there.
    """
    common: dict[str, Any] = {
        "env": vec_env,
        "learning_rate": Schedule(settings.schedule, settings.learning_rate),
        "gamma": settings.gamma,
        "seed": seed,
        "device": "cpu",
        "policy_kwargs": policy_arguments(settings, table),
    }
    if settings.algorithm == "branching_dqn":
        return _q_learner(settings, common)
    n_steps = min(settings.n_steps, max(2, settings.total_timesteps // vec_env.num_envs))
    common |= {
        "n_steps": n_steps,
        "batch_size": min(settings.batch_size, n_steps * vec_env.num_envs),
        "n_epochs": settings.n_epochs,
        "gae_lambda": settings.gae_lambda,
        "entropy": Schedule(settings.schedule, settings.ent_coef),
        "clip_range": settings.clip_range,
        "target_kl": settings.target_kl,
        "threads": usable_threads(),
    }
    if settings.algorithm == "recurrent_ppo":
        common["policy_kwargs"]["lstm_hidden_size"] = settings.lstm_size
        return ScheduledRecurrentPPO(RecurrentResidualPolicy, **common)
    if settings.algorithm == "ppo":
        return ScheduledPPO(ResidualPolicy, **common)
    return ScheduledMaskablePPO(MaskableResidualPolicy, **common)


def _q_learner(settings: AgentSettings, common: dict[str, Any]) -> BranchingDQN:
    envs = common["env"].num_envs
    return BranchingDQN(
        ResidualPolicy,
        **common,
        sharpness=settings.sharpness,
        target_every=settings.target_every,
        explore=(settings.explore_share, settings.explore_start, settings.explore_end),
        buffer_size=settings.buffer_size,
        learning_starts=min(settings.learning_starts, settings.total_timesteps // 2),
        batch_size=settings.batch_size,
        train_freq=max(1, settings.n_steps // envs),
        gradient_steps=settings.n_epochs,
        update_threads=usable_threads(),
    )


def policy_arguments(settings: AgentSettings, table: RoundTable) -> dict[str, Any]:
    """What every algorithm's policy is built with."""
    return {
        "net_arch": list(settings.widths),
        "optimizer_kwargs": {"eps": 1e-5, "fused": True},  # stable-baselines3's eps
        "features_extractor_class": ScaledObservation,
        "features_extractor_kwargs": {
            "table": table if settings.residual else None,
            "prior": {"sharpness": settings.sharpness, "token_price": settings.token_price},
            "running": settings.normalise == "running",
        },
        "network": settings.network,
        "trimming": trimming_arguments(settings, table.drafts),
    }


def trimming_arguments(settings: AgentSettings, drafts: tuple[str, ...]) -> dict[str, Any] | None:
    """Arguments of ``Trimming`` without the number of drafts; None = every action."""
    if settings.actions == "all":
        return None
    draft = settings.fixed_draft
    if settings.actions == "lengths" and draft not in drafts and (draft is not None or len(drafts) > 1):
        raise UserError(
            f"agent.fixed_draft: agent.actions=lengths works with one draft, expected one of {', '.join(drafts)}, got "
            f"{draft}: name it, or use a zoo with that draft alone (zoo.drafts=[{drafts[0]}])"
        )
    index = drafts.index(draft) if draft in drafts else 0
    return {"actions": settings.actions, "gamma": settings.fixed_gamma, "stop": settings.fixed_stop, "draft": index}


def predict(learner: Learner, observation: Observation) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The learner's deterministic action, by its own library; masked where the algorithm masks.

    A recurrent learner is asked as at the start of a stream.
    """
    if isinstance(learner, MaskablePPO | BranchingDQN):
        action, _ = learner.predict(observation.vector, action_masks=observation.mask, deterministic=True)
    else:
        action, _ = learner.predict(observation.vector, deterministic=True)
    return np.asarray(action, dtype=np.int64)
