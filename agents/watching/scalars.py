"""Scalars of every rollout and update, from sums: nothing is counted decision by decision."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agents.training_envs import TrainingEnvs
from agents.watching.mix import DIMENSIONS, decision_mix


class ScalarsCallback(BaseCallback):
    """Logs what a rollout did and what its update did to the policy.

    Args:
        envs: Are asked for their sums, once a rollout.
        every: Fewest decisions between two records; for learners whose rollouts are a few decisions.
    """

    def __init__(self, envs: TrainingEnvs, every: int) -> None:
        super().__init__()
        self._envs, self._every = envs, every
        self._from = 0
        self._clock: tuple[int, float] | None = None

    def _on_training_start(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._envs.since_last_asked()  # what lies before is told or void
        self._from, self._clock = self.num_timesteps, None

    def _on_step(self) -> bool:
        if self._clock is None:  # from the first step, since validation lies before it
            self._clock = (self.num_timesteps, time.perf_counter())
        return True

    def _on_rollout_start(self) -> None:
        """The update behind it, if there was one; then count from here."""
        if self.num_timesteps - self._from < self._every or self._clock is None:
            return
        decisions, began_s = self._clock
        if self.num_timesteps > decisions:
            speed = (self.num_timesteps - decisions) / (time.perf_counter() - began_s)
            self.logger.record("time/decisions_per_s", speed)
        entropy_loss = self.logger.name_to_value.get("train/entropy_loss")
        if entropy_loss is not None:
            self.logger.record("train/entropy", -float(entropy_loss))
        self._begin()

    def _on_rollout_end(self) -> None:
        taken = self.num_timesteps - self._from
        if taken < self._every:
            return
        for name, value in rollout_scalars(self._envs.since_last_asked(), taken).items():
            self.logger.record(name, value)
        buffer: Any = getattr(self.model, "rollout_buffer", None)
        if buffer is not None and buffer.actions.shape[-1] == DIMENSIONS:
            observations = buffer.observations.reshape(-1, buffer.observations.shape[-1])
            mix = decision_mix(observations, buffer.actions.reshape(-1, DIMENSIONS).astype(np.int64))
            for name, value in mix.items():
                self.logger.record(f"decisions/{name}", value)

    def _on_training_end(self) -> None:
        self._on_rollout_start()


def rollout_scalars(sums: Mapping[str, float], decisions: int) -> dict[str, float]:
    """Rates of one rollout.

    Args:
        sums: What all environments did, see ``SpecEnv.totals``.
        decisions: Decisions taken.

    Returns:
        By name in tensorboard; what would be divided by nothing is left out.
    """
    thousand = sums["committed"] / 1000.0
    prompt = sums["kv_hit_tokens"] + sums["prefill_tokens"]
    pairs = {
        "decoding/tokens_per_s": (sums["committed"], sums["seconds"]),
        "decoding/speedup_vs_plain": (sums["plain_seconds"], sums["seconds"]),
        "decoding/acceptance": (sums["accepted"], sums["drafted"]),
        "decoding/illegal_per_decision": (sums["illegal"], float(decisions)),
        "memory/stall_s_per_1000_tokens": (sums["stall_s"], thousand),
        "memory/loads_per_1000_tokens": (sums["loads"], thousand),
        "memory/wasted_loads_share": (sums["wasted_loads"], sums["loads"]),
        "memory/kv_hit_rate": (sums["kv_hit_tokens"], prompt),
    }
    return {name: over / under for name, (over, under) in pairs.items() if under > 0.0}
