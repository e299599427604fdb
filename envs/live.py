"""The live world: the same environment over the real models on the wall clock.

There is one device, so there is one environment: a second one beside it would share the processor and spoil every
time that is measured.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

import numpy as np

from envs.base import Episode, SpecEnv
from envs.workload import Stream, Workload
from envs.world import WorldConfig
from runtime.live import LiveModels, open_session
from runtime.profile import CostModel
from runtime.session import DecodeSession


@dataclass
class LiveWorld:
    """Real models, real loads, real time.

    Attributes:
        models: Target and zoo.
        costs: The device's profile; gives the price of plain decoding for the reward.
        config: Memory and rhythm.
        kv_reserve_tokens: Context reserved in every resident draft's own KV.
        workload: Draws streams.
    """

    models: LiveModels
    costs: CostModel
    config: WorldConfig
    kv_reserve_tokens: int
    workload: Workload
    _open: ExitStack = field(default_factory=ExitStack)

    def session(self) -> DecodeSession:
        """A fresh session with empty memory; the one before is closed."""
        self.close()
        return self._open.enter_context(self.opened())

    def opened(self) -> AbstractContextManager[DecodeSession]:
        """A fresh session that the caller closes. Several may be open; only one may be within a request at a time."""
        config = self.config
        return open_session(self.models, config.memory, self.costs, self.kv_reserve_tokens, config.decision_interval)

    def streams(self, seed: int, count: int) -> tuple[Stream, ...]:
        """Streams that together cover the split's prompts evenly."""
        return self.workload.covering(seed, count)

    def episode(self, rng: np.random.Generator) -> Episode:
        """A random stream on a fresh session."""
        stream = self.workload.stream(int(rng.integers(2**31)), int(rng.integers(2**31)))
        return Episode(self.session(), tuple(item.request for item in stream))

    def env(self) -> SpecEnv:
        """A Gymnasium environment over random streams; not deterministic, since time is real."""
        return SpecEnv(self.episode, len(self.models.zoo.drafts), self.config.max_steps)

    def close(self) -> None:
        """End the open session's loader thread."""
        self._open.close()
        self._open = ExitStack()
