"""The Gymnasium environment over the one session loop: each step is one decision.

``SpecEnv`` is shared by the replay and the live environment; they differ in the session behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runtime.control.action import ActionCodec, BoolMask
from runtime.control.observation import Observation, bounds
from runtime.core import Outcome, Request
from runtime.session import DecodeSession

Obs = npt.NDArray[np.float32]

COUNTED = (
    "rounds",
    "drafted",
    "accepted",
    "committed",
    "seconds",
    "stall_s",
    "loads",
    "wasted_loads",
    "kv_hit_tokens",
    "prefill_tokens",
    "illegal",
)
"""Fields of a session's ``Counters`` that ``totals`` adds up."""


class Episode(NamedTuple):
    """One episode: a fresh session and the requests it serves."""

    session: DecodeSession
    requests: tuple[Request, ...]


class SpecEnv(gym.Env[Obs, npt.NDArray[np.int64]]):
    """Control a speculative decoder and its memory, one decision a step.

    ## Description
    A target model answers a stream of requests. Before every step a joint decision is taken over draft choice, draft
    length, confidence stop, prefetch, KV reuse and whose memory is given up (MemSpec and RAKV-ASD decide parts of it).

    ## Action Space
    ``MultiDiscrete([1 + drafts * 4, 4, 1 + drafts, 2, 2])``: speculate, stop, prefetch, kv, victim; see
    ``runtime.control.action``. ``action_masks()`` gives what is legal as one flat boolean vector. An illegal choice
    falls back (draft → plain, too long → longest legal, else → nothing) and is counted in ``info["illegal"]``.

    ## Observation Space
    ``Box`` of float32, raw values in the units of the table in ``runtime.control.observation``.

    ## Rewards
    (time plain decoding would need - time spent) / time of a plain step: plain decoding steps saved. Of a prefill,
    plain decoding would need all of it: what every policy pays for a prompt is no reward for being slow to reach it.

    ## Starting State
    Nothing resident, nothing stored, the first request of a stream to be admitted.

    ## Episode End
    Termination: the stream is finished. Truncation: ``max_steps`` decisions were taken.

    ## Arguments
    ``make_episode``: from a NumPy generator to an ``Episode``. ``n_drafts``: drafts of the zoo. ``max_steps``:
    decisions before truncation, 0 = never.

    ## Version History
    v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self, make_episode: Callable[[np.random.Generator], Episode], n_drafts: int, max_steps: int = 0
    ) -> None:
        self._make_episode = make_episode
        self._max_steps = max_steps
        self._session: DecodeSession | None = None
        self._observation: Observation | None = None
        self._steps = 0
        self._began: Mapping[str, Any] = {}
        self._actions: list[npt.NDArray[np.int64]] = []
        self._past, self._plain_s = dict.fromkeys(COUNTED, 0.0), 0.0
        low, high = bounds(n_drafts)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.codec = ActionCodec(n_drafts)
        self.action_space = gym.spaces.MultiDiscrete(list(self.codec.nvec))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start a new stream on a fresh session."""
        super().reset(seed=seed)
        self._past = self._counted()
        self._began, self._actions = self.np_random.bit_generator.state, []
        episode = self._make_episode(self.np_random)
        self._session, self._steps = episode.session, 0
        episode.session.start(episode.requests)
        self._observation = episode.session.observe()
        return self._observation.vector, {}

    def step(self, action: npt.NDArray[np.int64]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Carry one decision out."""
        if self._session is None:
            raise gym.error.ResetNeeded("step() before reset(): call reset() first")
        self._actions.append(np.array(action, dtype=np.int64))
        outcome = self._session.advance(self.codec.decode(action))
        self._steps += 1
        self._plain_s += outcome.plain_seconds
        self._observation = self._session.observe()
        truncated = bool(self._max_steps) and self._steps >= self._max_steps and not outcome.stream_finished
        info: dict[str, Any] = {"illegal": outcome.illegal}
        if outcome.stream_finished or truncated:
            info["stream"] = self._session.counters
        return self._observation.vector, self.reward(outcome), outcome.stream_finished, truncated, info

    def action_masks(self) -> BoolMask:
        """Legal values of every dimension, flat; what MaskablePPO asks for."""
        if self._observation is None:
            raise gym.error.ResetNeeded("action_masks() before reset(): call reset() first")
        return self._observation.mask

    def reward(self, outcome: Outcome) -> float:
        """Plain decoding steps saved by one step."""
        assert self._session is not None
        plain_s = self._session.costs.plain_s(self._session.costs.profile.reference_context)
        return (outcome.plain_seconds - outcome.seconds) / plain_s

    def totals(self) -> dict[str, float]:
        """What happened since the environment was made: ``COUNTED``, and ``plain_seconds`` of plain decoding."""
        return {**self._counted(), "plain_seconds": self._plain_s}

    def state_dict(self) -> dict[str, Any]:
        """Where the environment stands, as what leads there again.

        Returns:
            ``rng``, the generator's state before the episode was drawn; ``actions``, int64 of shape (decisions, 5),
            taken since. With a virtual clock the same actions give the same episode; with a real one they do not.
        """
        taken = np.array(self._actions, dtype=np.int64).reshape(len(self._actions), len(self.codec.nvec))
        return {"rng": dict(self._began), "actions": taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> tuple[Obs, list[float]]:
        """Draw the episode and take its actions again.

        Args:
            state: Of ``state_dict``, of an environment made alike.

        Returns:
            The observation to decide on next, and the rewards of the actions.

        Raises:
            ValueError: If the episode ends before its last action: it was of another world.
        """
        rng = self.np_random
        rng.bit_generator.state = state["rng"]
        observation, _ = self.reset()
        rewards = []
        for index, action in enumerate(state["actions"]):
            observation, reward, ended, truncated, _ = self.step(action)
            rewards.append(reward)
            if ended or truncated:
                raise ValueError(f"the episode ended after {index + 1} of {len(state['actions'])} decisions")
        return observation, rewards

    def _counted(self) -> dict[str, float]:
        if self._session is None:
            return self._past
        return {name: past + getattr(self._session.counters, name) for name, past in self._past.items()}
