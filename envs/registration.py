"""``gymnasium.make("specpilot/Replay-v0", world=...)`` and ``specpilot/Live-v0``: importing this registers both."""

from __future__ import annotations

import gymnasium as gym

from envs.base import SpecEnv
from envs.live import LiveWorld
from envs.world import ReplayWorld


def make_env(world: ReplayWorld | LiveWorld) -> SpecEnv:
    """The environment of a world."""
    return world.env()


def register() -> None:
    """Register both environments; calling it again does nothing."""
    if "specpilot/Replay-v0" in gym.registry:
        return
    gym.register("specpilot/Replay-v0", entry_point="envs.registration:make_env")
    gym.register("specpilot/Live-v0", entry_point="envs.registration:make_env", nondeterministic=True)


register()
