"""A replay world: everything that sessions, environments and evaluations over one zoo and device share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from envs.base import Episode, SpecEnv
from envs.replay.bank import TraceBank
from envs.replay.clock import VirtualClock
from envs.replay.decoder import ReplayDecoder
from envs.replay.loader import VirtualLoader
from envs.traces import TraceSet
from envs.workload import Stream, Workload, WorkloadConfig
from runtime.control.topic import TopicPredictor
from runtime.core import DraftSpec, MemoryConfig
from runtime.memory.manager import MemoryManager
from runtime.profile import CostModel
from runtime.session import DecodeSession, SessionConfig


@dataclass(frozen=True)
class WorldConfig:
    """Memory and rhythm of a world; see ``conf/env/replay.yaml``.

    Attributes:
        memory: The byte budget.
        decision_interval: Rounds between two decisions about prefetching.
        max_steps: Decisions before an episode is truncated; 0 = never.
    """

    memory: MemoryConfig
    decision_interval: int = 4
    max_steps: int = 0


@dataclass(frozen=True)
class ReplayWorld:
    """Traces of one split on the virtual clock of one profile.

    Attributes:
        traces: Recorded texts.
        drafts: The zoo's drafts.
        costs: What work costs.
        topic: Topic predictor.
        config: Memory and rhythm.
        workload: What streams are like.
        split: Split of the prompts.
    """

    traces: TraceSet
    drafts: tuple[DraftSpec, ...]
    costs: CostModel
    topic: TopicPredictor | None
    config: WorldConfig
    workload: WorkloadConfig
    split: str

    @cached_property
    def bank(self) -> TraceBank:
        """Traces made ready, once."""
        return TraceBank(self.traces, self.drafts, self.costs, self.topic)

    @cached_property
    def generator(self) -> Workload:
        """Draws streams."""
        return Workload(self.traces, self.split, self.workload)

    def session(self) -> DecodeSession:
        """A fresh session with empty memory."""
        clock = VirtualClock()
        loader = VirtualLoader(self.costs, clock)
        memory = MemoryManager(self.config.memory, self.drafts, loader, self.costs)
        decoder = ReplayDecoder(self.bank, loader)
        config = SessionConfig(self.config.decision_interval)
        return DecodeSession(decoder, memory, clock, self.costs, self.topic, config)

    def streams(self, seed: int, count: int) -> tuple[Stream, ...]:
        """Streams that together cover the split's prompts evenly."""
        return self.generator.covering(seed, count)

    def episode(self, rng: np.random.Generator) -> Episode:
        """A random stream on a fresh session."""
        stream = self.generator.stream(int(rng.integers(2**31)), int(rng.integers(2**31)))
        return Episode(self.session(), tuple(item.request for item in stream))

    def env(self) -> SpecEnv:
        """A Gymnasium environment over random streams of the split."""
        return SpecEnv(self.episode, len(self.drafts), self.config.max_steps)
