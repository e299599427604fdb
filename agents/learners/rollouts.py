"""MaskablePPO, PPO and RecurrentPPO with schedules that can be saved and features computed once."""

from __future__ import annotations

from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO

from agents.learners.base import FromRollouts


class ScheduledMaskablePPO(FromRollouts, MaskablePPO):
    """MaskablePPO: illegal choices have no probability."""


class ScheduledPPO(FromRollouts, PPO):
    """PPO without masks: an illegal choice falls back and is counted."""


class ScheduledRecurrentPPO(FromRollouts, RecurrentPPO):
    """RecurrentPPO: PPO without masks whose policy remembers a stream. Its buffer wants raw observations."""

    once = False
