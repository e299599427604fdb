"""Small objects that many tests need. Made up on purpose; nothing here is measured."""

from __future__ import annotations

import numpy as np

from envs.trace_code import encode
from envs.traces import RUN_ON, DraftRef, DraftTrace, Trace, TraceSet
from envs.workload import WorkloadConfig
from envs.world import ReplayWorld, WorldConfig
from runtime.core import DraftSpec, MemoryConfig
from runtime.memory.base import Job, Loaded, ReadKV
from runtime.profile import CostModel, Curve, DraftCost, Profile

NAMES = ("code", "math", "lookup")


def make_profile(names: tuple[str, ...] = NAMES, load_s: float = 0.25) -> Profile:
    """Plain step 0.1 s, verify 0.1 + 0.01 a guess, guess 0.01 s, prefill 1 ms a token."""
    draft = DraftCost(Curve((1.0, 101.0), (0.01, 0.11)), load_s, 1000, 2)
    free = DraftCost(Curve((1.0, 101.0), (0.0001, 0.0001)), 0.0, 0, 0)
    return Profile(
        device="made up",
        engine="none",
        dtype="float32",
        threads=1,
        target="fingerprint",
        reference_context=100,
        forward=Curve((1.0, 9.0), (0.1, 0.18)),
        decode=Curve((0.0, 1000.0), (0.1, 0.1)),
        prefill=Curve((0.0, 1000.0), (0.0, 1.0)),
        drafts={name: free if name == "lookup" else draft for name in names},
        kv_store=Curve((0.0, 1000.0), (0.0, 0.01)),
        kv_restore=Curve((0.0, 1000.0), (0.0, 0.01)),
        kv_bytes_per_token=10,
        simulated=True,
    )


def make_costs(names: tuple[str, ...] = NAMES) -> CostModel:
    """The cost model of ``make_profile``."""
    return CostModel(make_profile(names), names)


def make_specs(names: tuple[str, ...] = NAMES) -> tuple[DraftSpec, ...]:
    """Drafts of 1,000 bytes; ``lookup`` needs none."""
    return tuple(
        DraftSpec(name, 0, loadable=False, expected=0.1) if name == "lookup" else DraftSpec(name, 1000)
        for name in names
    )


def make_memory_config(budget_bytes: int = 2500) -> MemoryConfig:
    """A budget of two and a half drafts."""
    return MemoryConfig(budget_bytes, workspace_bytes=100, kv_bytes_per_token=10)


class HandLoader:
    """A loader whose loads finish when the test says so."""

    def __init__(self) -> None:
        self.running: list[Job] = []
        self.done: list[Loaded] = []

    def start(self, job: Job) -> None:
        self.running.append(job)

    def finish(self, error: str | None = None, good: int | None = None) -> None:
        """Finish the oldest job; of blocks that are read only the first ``good`` can be used."""
        job = self.running.pop(0)
        payload: object = [object() for _ in job.nodes][:good] if isinstance(job, ReadKV) else object()
        self.done.append(Loaded(job, None if error else payload, 0.1, error))

    def poll(self) -> list[Loaded]:
        done, self.done = self.done, []
        return done

    def wait(self, job: Job) -> None:
        while job in self.running:
            self.finish()

    def fraction(self, draft: int) -> float:
        return 0.5

    def close(self) -> None: ...


def make_traces(names: tuple[str, ...] = NAMES, prompts: int = 12, length: int = 40, seed: int = 0) -> TraceSet:
    """Random texts of as many domains as there are recorded drafts; each draft is right in its own domain."""
    rng = np.random.default_rng(seed)
    recorded = tuple(name for name in names if name != "lookup")

    def draft_trace(acceptance: float) -> DraftTrace:
        match = rng.random(length) < acceptance
        confidence = np.where(match, rng.beta(6, 2, length), rng.beta(2, 3, length))
        start = np.concatenate([[0], np.where(match, 0, RUN_ON).cumsum()]).astype(np.int32)
        return DraftTrace(match, encode(confidence), encode(rng.beta(2, 3, int(start[-1]))), start)

    traces: list[Trace] = []
    for index in range(prompts):
        home = index % len(recorded)
        # tokens above 2, so that no text ends early; prompts start alike, so that prefixes can be reused
        prompt = (*range(10, 20), *rng.integers(3, 1000, 20).tolist())
        drafts = tuple(draft_trace(0.8 if d == home else 0.2) for d in range(len(recorded)))
        output = tuple(rng.integers(3, 1000, length).tolist())
        for split in ("train", "heldout"):
            name = f"{split}-{index}"
            traces.append(Trace(name, recorded[home], split, "single", name, 0, (*prompt, len(traces)), output, drafts))
    return TraceSet("fingerprint", tuple(DraftRef(name, "") for name in recorded), frozenset([2]), tuple(traces))


def make_world(
    names: tuple[str, ...] = NAMES,
    budget_bytes: int = 2500,
    max_steps: int = 0,
    requests: int = 4,
    split: str = "train",
) -> ReplayWorld:
    """A replay world over ``make_traces`` and ``make_profile``."""
    return ReplayWorld(
        make_traces(names),
        make_specs(names),
        make_costs(names),
        None,
        WorldConfig(make_memory_config(budget_bytes), max_steps=max_steps),
        WorkloadConfig(requests=requests),
        split,
    )
