"""The batched replay as stable-baselines3 sees it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from envs.base import SpecEnv
from envs.batched.assemble import build_tables, empty_seen, empty_streams
from envs.batched.books import Totals, counters
from envs.batched.dealer import Dealer
from envs.batched.kernel import columns as col
from envs.batched.kernel.serving import TRUNCATED, serve
from envs.batched.kernel.tables import Flags, Longs, Singles
from envs.world import ReplayWorld
from runtime.errors import UserError
from runtime.threads import usable_threads

STATE_SCHEMA = 1
SMALLEST_SHARE = 64
"""Fewest streams that are worth a thread of their own."""

Stepped = tuple[Singles, Singles, Flags, list[dict[str, Any]]]
"""Observations, rewards, ends and infos."""


class BatchedReplay(VecEnv):
    """Many replayed streams, stepped together.

    Stands for ``DummyVecEnv([Monitor(world.env()), …])`` and returns the same, bit for bit, from the same seeds and
    actions: observations, masks, rewards, ends, and in ``infos`` ``illegal``, ``TimeLimit.truncated`` and at an
    episode's end ``stream``, ``episode`` and ``terminal_observation``. Only the times in ``episode`` differ.

    Args:
        worlds: A world, or several that share traces, drafts, workload and topic predictor and differ in costs and
            budget; of several each episode draws one first.
        n_envs: Streams stepped together.
        threads: Threads that step them; None = all cores that this process may use. No result depends on it.

    Raises:
        UserError: If a world asks for what is not compiled; single environments serve it.
    """

    def __init__(self, worlds: ReplayWorld | Sequence[ReplayWorld], n_envs: int, threads: int | None = None) -> None:
        if n_envs < 1:
            raise UserError(f"env.n_envs must be at least 1, got {n_envs}")
        self.worlds = (worlds,) if isinstance(worlds, ReplayWorld) else tuple(worlds)
        self.tables = build_tables(self.worlds)
        self.streams = empty_streams(self.tables, self.worlds, n_envs)
        self.seen = empty_seen(self.tables, n_envs)
        self.totals = Totals.none()
        self._single: SpecEnv = self.worlds[0].env()
        self.codec = self._single.codec
        self._dealer = Dealer(self.worlds[0].generator, self.worlds[0].bank)
        self._rngs: list[np.random.Generator | None] = [None] * n_envs
        self._ready = False
        self._actions: Longs = np.zeros((n_envs, len(self.codec.nvec)), dtype=np.int64)
        self._begun_s = time.time()
        shares = max(1, min(threads or usable_threads(), n_envs // SMALLEST_SHARE))
        self._shares = np.array_split(np.arange(n_envs), shares)
        self._pool = ThreadPoolExecutor(shares - 1, "batched-replay") if shares > 1 else None
        super().__init__(n_envs, self._single.observation_space, self._single.action_space)

    # -- the loop ------------------------------------------------------------------------------------------------

    def reset(self) -> Singles:
        """Begin a new stream in every environment; observations of shape (n_envs, size)."""
        for index, seed in enumerate(self._seeds):
            if seed is not None:
                self._rngs[index], _ = seeding.np_random(seed)
        self._begin(np.arange(self.num_envs))
        self._reset_seeds()
        self._reset_options()
        self._ready = True
        return self.seen.vector.copy()

    def step_async(self, actions: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Take in actions, shape (n_envs, 5)."""
        if not self._ready:
            raise gym.error.ResetNeeded("step() before reset(): call reset() first")
        given = np.ascontiguousarray(actions, dtype=np.int64)
        if given.shape != self._actions.shape or (given < 0).any() or (given >= self.codec.nvec).any():
            raise ValueError(
                f"expected actions of shape {self._actions.shape} below {list(self.codec.nvec)}, got shape "
                f"{given.shape} with values up to {given.max(0, initial=0).tolist()}"
            )
        self._actions = given

    def step(self, actions: np.ndarray[Any, np.dtype[Any]]) -> Stepped:
        """``step_async``, then ``step_wait``."""
        self.step_async(actions)
        return self.step_wait()

    def step_wait(self) -> Stepped:
        """Step all streams; those that have ended begin anew."""
        others = [self._pool.submit(self._serve, share) for share in self._shares[1:]] if self._pool else []
        self._serve(self._shares[0])
        for other in others:
            other.result()
        infos: list[dict[str, Any]] = [
            {"illegal": illegal, "TimeLimit.truncated": False} for illegal in self.seen.illegal.tolist()
        ]
        rewards, dones = self.seen.reward.astype(np.float32), self.seen.ended != 0
        ended = np.flatnonzero(dones)
        if len(ended):
            self._end(ended, infos)
            self._begin(ended)
        return self.seen.vector.copy(), rewards, dones, infos

    def masks(self) -> Flags:
        """Legal values of every action dimension, flat, shape (n_envs, sum(nvec)); a copy."""
        return self.seen.mask.copy()

    def since_last_asked(self) -> dict[str, float]:
        """What all streams did since the last call: see ``envs.batched.books.SUMMED``. Times in seconds."""
        return self.totals.since_last_asked(self.streams)

    def _end(self, ended: Longs, infos: list[dict[str, Any]]) -> None:
        self.totals.end(self.streams, ended)
        since_s = round(time.time() - self._begun_s, 6)
        for index in ended.tolist():
            episode = {"r": round(float(self.streams.real[index, col.RETURN]), 6)}
            episode |= {"l": int(self.streams.whole[index, col.STEPS]), "t": since_s}
            infos[index] |= {
                "stream": counters(self.streams, index),
                "episode": episode,
                "TimeLimit.truncated": bool(self.seen.ended[index] == TRUNCATED),
                "terminal_observation": self.seen.vector[index].copy(),
            }

    def _begin(self, indices: Longs) -> None:
        for index in indices.tolist():
            rng = self._rngs[index]
            if rng is None:
                rng, _ = seeding.np_random()
                self._rngs[index] = rng
            several = len(self.worlds) > 1
            self.streams.whole[index, col.WORLD] = rng.integers(len(self.worlds)) if several else 0
            self.streams.plan[index] = self._dealer.stream(int(rng.integers(2**31)), int(rng.integers(2**31)))
        self._serve(indices, fresh=True)

    def _serve(self, indices: Longs, fresh: bool = False) -> None:
        serve(self.tables, self.streams, self.seen, self._actions, indices, fresh)

    # -- a state that can be kept ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where everything is: arrays by name, and under ``json`` what JSON can hold."""
        arrays = {f"streams.{name}": array.copy() for name, array in self.streams._asdict().items()}
        arrays |= {f"seen.{name}": array.copy() for name, array in self.seen._asdict().items()}
        arrays |= {"totals.whole": self.totals.whole.copy(), "totals.real": self.totals.real.copy()}
        rngs = [None if rng is None else rng.bit_generator.state for rng in self._rngs]
        rest = {"schema": STATE_SCHEMA, "rngs": rngs, "seeds": list(self._seeds), "told": dict(self.totals.told)}
        return {**arrays, "json": {**rest, "ready": self._ready, "elapsed_s": time.time() - self._begun_s}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict`` of an environment over the same worlds.

        Raises:
            UserError: If it is of other worlds, or of another number of streams.
        """
        rest = state["json"]
        if rest["schema"] != STATE_SCHEMA:
            raise UserError(f"expected a state of schema {STATE_SCHEMA}, got {rest['schema']}: start anew")
        for part, arrays in (("streams", self.streams), ("seen", self.seen)):
            for name, array in arrays._asdict().items():
                given = state[f"{part}.{name}"]
                if given.shape != array.shape:
                    raise UserError(
                        f"expected a state with {part}.{name} of shape {array.shape}, got {given.shape}: it is of "
                        "another number of environments, zoo, workload or budget"
                    )
        for part, arrays in (("streams", self.streams), ("seen", self.seen)):
            for name, array in arrays._asdict().items():
                array[...] = state[f"{part}.{name}"]
        self.totals = Totals(state["totals.whole"].copy(), state["totals.real"].copy(), dict(rest["told"]))
        self._rngs = [None if kept is None else _restored(kept) for kept in rest["rngs"]]
        self._seeds, self._ready = list(rest["seeds"]), rest["ready"]
        self._begun_s = time.time() - rest["elapsed_s"]

    # -- what VecEnv asks for -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of single environments; the same object for all."""
        if attr_name == "action_masks":
            return [self.seen.mask[index].copy for index in self._chosen(indices)]
        value = getattr(self._single, attr_name)
        return [value for _ in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refused: streams have no attributes of their own."""
        raise AttributeError(f"streams of a batched replay share one world: {attr_name!r} cannot be set")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """``action_masks`` gives a row for each stream; there are no other methods."""
        if method_name != "action_masks":
            raise AttributeError(f"streams of a batched replay have the method action_masks alone, not {method_name!r}")
        masks = self.masks()
        return list(masks) if indices is None else [masks[index] for index in self._chosen(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None) -> list[bool]:
        """Whether a wrapper's work is done here: that of ``Monitor`` is."""
        return [wrapper_class.__name__ == "Monitor" for _ in self._chosen(indices)]

    def _chosen(self, indices: VecEnvIndices) -> Iterable[int]:
        return self._get_indices(indices)


def _restored(state: dict[str, Any]) -> np.random.Generator:
    rng = np.random.Generator(np.random.PCG64())
    rng.bit_generator.state = state
    return rng
