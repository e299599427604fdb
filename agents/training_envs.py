"""The environments that a learner steps together: how they are built, and what any kind of them must be able to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from envs.base import SpecEnv
from envs.world import ReplayWorld
from runtime.control.action import BoolMask


class TrainingEnvs(Protocol):
    """What training asks of its environments besides stable-baselines3's ``VecEnv``."""

    def state_dict(self) -> dict[str, Any]:
        """Where all environments stand: a tree of NumPy arrays and plain values, see ``agents.checkpoints.tree``."""

    def load_state_dict(self, state: Mapping[str, Any]) -> object:
        """Stand there again, in environments made alike; observations, masks and random draws go on the same."""

    def masks(self) -> BoolMask:
        """Legal values of the next actions, bool, shape (environments, sum(nvec))."""

    def since_last_asked(self) -> Mapping[str, float]:
        """What all environments did since the last call: what ``SpecEnv.totals`` names, or more."""


class SteppedEnvs(DummyVecEnv):
    """``SpecEnv``s stepped one after the other in this process.

    Args:
        make_env: Builds one.
        n_envs: How many.
    """

    def __init__(self, make_env: Callable[[], SpecEnv], n_envs: int) -> None:
        super().__init__([lambda: Monitor(make_env())] * n_envs)
        self._told: Mapping[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"envs": [env.state_dict() for env in self._inner()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kept = state["envs"]
        self._reset_seeds()
        for index, (monitor, env) in enumerate(zip(self.envs, self._inner(), strict=True)):
            observation, rewards = env.load_state_dict(kept[index])
            watching = cast(Monitor[Any, Any], monitor)
            watching.rewards, watching.needs_reset = rewards, False
            self._save_obs(index, observation)

    def redraw(self, state: Mapping[str, Any]) -> Any:
        """Begin new episodes with the generators where they stood: what a real clock allows. The observations."""
        self._reset_seeds()
        for env, kept in zip(self._inner(), state["envs"], strict=True):
            env.np_random.bit_generator.state = kept["rng"]
            env.np_random.integers(2**31, size=2)  # the interrupted episode's own draws
        return self.reset()

    def masks(self) -> BoolMask:
        return np.stack([env.action_masks() for env in self._inner()])

    def since_last_asked(self) -> Mapping[str, float]:
        total: Counter[str] = Counter()
        for env in self._inner():
            total.update(env.totals())
        grown = {name: value - self._told.get(name, 0.0) for name, value in total.items()}
        self._told = total
        return grown

    def _inner(self) -> list[SpecEnv]:
        return [cast(SpecEnv, env.unwrapped) for env in self.envs]


def build_envs(
    make_env: Callable[[], SpecEnv], worlds: Sequence[ReplayWorld], n_envs: int, batched: bool, seed: int
) -> tuple[VecEnv, TrainingEnvs]:
    """The environments of a run, seeded; twice the same object, seen from both sides.

    Args:
        make_env: Builds one environment, for stepping one after the other.
        worlds: What is replayed, for stepping all at once.
        n_envs: Environments stepped together.
        batched: Whether all streams are stepped at once (replay only).
        seed: The first environment's; the others' are the next numbers.
    """
    envs: Any
    if batched:
        from envs.batched.vec_env import BatchedReplay  # compiles: not for runs that do not use it

        envs = BatchedReplay(tuple(worlds), n_envs)
    else:
        envs = SteppedEnvs(make_env, n_envs)
    envs.seed(seed)
    return envs, envs
