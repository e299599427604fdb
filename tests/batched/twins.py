"""A batched replay beside single environments: whatever they show has to be the same, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from envs.base import SpecEnv
from envs.batched import BatchedReplay
from envs.world import ReplayWorld


class Twins:
    """Both, begun from the same seed.

    Args:
        worlds: What the batched replay gets.
        n_envs: How many.
        seed: Of the first; the others follow.
        envs: Single environments; None = those of the only world.
    """

    def __init__(
        self, worlds: Sequence[ReplayWorld], n_envs: int, seed: int, envs: Sequence[SpecEnv] | None = None
    ) -> None:
        self.batched = BatchedReplay(worlds, n_envs)
        self.single = list(envs or (worlds[0].env() for _ in range(n_envs)))
        self.batched.seed(seed)
        self.vectors = self.batched.reset()
        self.ended = np.zeros(n_envs, dtype=np.int64)
        self.steps = 0
        for index, env in enumerate(self.single):
            self._compare_seen(index, env.reset(seed=seed + index)[0])

    def action(self, rng: np.random.Generator, illegal: float) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Random actions; of each dimension an illegal one with a chance of ``illegal``, if there is one."""
        offsets, rows = self.batched.codec.offsets, []
        for mask in self.batched.masks():
            parts = [mask[a:b] for a, b in pairwise(offsets)]
            wanted = [part if rng.random() >= illegal or part.all() else ~part for part in parts]
            rows.append([int(rng.choice(np.flatnonzero(part))) for part in wanted])
        return np.array(rows)

    def step(self, actions: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Both take a step, and are compared."""
        self.vectors, rewards, dones, infos = self.batched.step(actions)
        self.steps += 1
        for index, env in enumerate(self.single):
            vector, reward, terminated, truncated, info = env.step(actions[index])
            where = f"stream {index}, step {self.steps}"
            assert self.batched.seen.reward[index] == reward and rewards[index] == np.float32(reward), where
            assert dones[index] == (terminated or truncated), where
            assert infos[index]["illegal"] == info["illegal"], where
            assert infos[index]["TimeLimit.truncated"] == truncated, where
            assert ("stream" in infos[index]) == ("stream" in info), where
            if terminated or truncated:
                self.ended[index] += 1
                assert infos[index]["stream"] == info["stream"], where
                assert np.array_equal(infos[index]["terminal_observation"], vector), where
                vector, _ = env.reset()
            self._compare_seen(index, vector)

    def _compare_seen(self, index: int, vector: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        assert self.vectors[index].dtype == vector.dtype == np.float32
        different = np.flatnonzero(self.vectors[index] != vector)
        assert not len(different), (
            f"stream {index}, step {self.steps}: features {different} are {self.vectors[index][different]}, expected "
            f"{vector[different]}"
        )
        assert np.array_equal(self.batched.masks()[index], self.single[index].action_masks()), (
            f"stream {index}, step {self.steps}: masks differ"
        )
