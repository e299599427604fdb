"""A session over the tiny real models: real loader thread or one that a test moves by hand, real files of stored KV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.control.topic import TopicPredictor
from runtime.core import BLOCK_TOKENS, Decision, MemoryConfig, Outcome, Phase, Request
from runtime.decoding.clock import WallClock
from runtime.decoding.live import LiveDecoder
from runtime.engine.transformers_model import TransformersModel
from runtime.kv_folder import KVFolder
from runtime.memory.base import Job, Loaded, Loader, ReadKV
from runtime.memory.manager import MemoryManager
from runtime.profile import CostModel
from runtime.session import DecodeSession
from tests.factories import make_profile
from tests.tiny import SPECS, drafts, target

N = BLOCK_TOKENS
PER_TOKEN = 384  # bytes of the tiny target's KV
DRAFT = SPECS[0].bytes
NAMES = tuple(spec.name for spec in SPECS)
LOOKUP_BYTES = sum(spec.bytes for spec in SPECS if not spec.loadable)


class Work:
    """What the loader does: hands out the tiny drafts, reads and writes real KV files."""

    def __init__(self, disk: KVFolder | None = None) -> None:
        self.disk = disk

    def __call__(self, job: Job) -> Any:
        if isinstance(job, int):
            return drafts()[job]
        assert self.disk is not None
        return self.disk.read(job.nodes) if isinstance(job, ReadKV) else self.disk.write(job.nodes)


class StepLoader:
    """A loader that does one job whenever the test says so, or when somebody waits for it."""

    def __init__(self, work: Callable[[Job], Any]) -> None:
        self.work = work
        self.waiting: list[Job] = []
        self.done: list[Loaded] = []

    def start(self, job: Job) -> None:
        if job not in self.waiting:
            self.waiting.append(job)

    def step(self, error: str | None = None) -> None:
        """Do the oldest job, or let it fail."""
        job = self.waiting.pop(0)
        self.done.append(Loaded(job, None if error else self.work(job), 0.1, error))

    def poll(self) -> list[Loaded]:
        done, self.done = self.done, []
        return done

    def wait(self, job: Job) -> None:
        while job in self.waiting:
            self.step()

    def fraction(self, draft: int) -> float:
        return 0.5

    def close(self) -> None: ...


def open_tiny(
    kv_tokens: int = 1000,
    n_drafts: int = 2,
    disk_tokens: int = 0,
    folder: Path | None = None,
    loader: Loader | None = None,
    model: TransformersModel | None = None,
    topic: TopicPredictor | None = None,
) -> tuple[DecodeSession, Loader]:
    """A fresh session; memory for so many drafts and the KV of so many tokens."""
    model = model or target()
    disk = KVFolder(folder, model.kv_name) if folder else None
    loader = loader or StepLoader(Work(disk))
    budget = n_drafts * DRAFT + kv_tokens * PER_TOKEN + LOOKUP_BYTES
    config = MemoryConfig(budget, 0, PER_TOKEN, disk_tokens * PER_TOKEN)
    costs = CostModel(make_profile(NAMES), NAMES)
    memory = MemoryManager(config, SPECS, loader, costs, disk)
    memory.prefixes.adopt(0.0)
    return DecodeSession(LiveDecoder(model, SPECS), memory, WallClock(), costs, topic), loader


Decide = Callable[[DecodeSession], Decision]


def keep_all(session: DecodeSession) -> Decision:
    """Plain decoding that reuses and retains whatever it can."""
    return Decision(kv=True)


def guess(draft: int, gamma: int) -> Decide:
    """One draft, loaded when it is needed, with all KV kept."""
    return lambda session: Decision(draft=draft, gamma=gamma, kv=True, wait=True)


def serve(session: DecodeSession, requests: list[Request], decide: Decide = keep_all) -> list[list[Outcome]]:
    """Serve requests to the end; their outcomes, request by request."""
    served: list[list[Outcome]] = [[]]
    more = session.start(requests)
    while more:
        session.observe()
        outcome = session.advance(decide(session))
        served[-1].append(outcome)
        if outcome.phase is Phase.COMPLETE:
            served.append([])
        more = not outcome.stream_finished
    return served[:-1]


def text(outcomes: list[Outcome]) -> tuple[int, ...]:
    """The committed tokens of a request."""
    return tuple(token for outcome in outcomes for token in outcome.tokens)
