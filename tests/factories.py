"""Small objects that many tests need. Made up on purpose; nothing here is measured."""

from __future__ import annotations

from runtime.core import DraftSpec, MemoryConfig
from runtime.memory.base import Loaded
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
        DraftSpec(name, 0 if name == "lookup" else 1000, loadable=name != "lookup") for name in names
    )


def make_memory_config(budget_bytes: int = 2500) -> MemoryConfig:
    """A budget of two and a half drafts."""
    return MemoryConfig(budget_bytes, workspace_bytes=100, kv_bytes_per_token=10)


class HandLoader:
    """A loader whose loads finish when the test says so."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.done: list[Loaded] = []

    def start(self, draft: int) -> None:
        self.running.append(draft)

    def finish(self, error: str | None = None) -> None:
        """Finish the oldest load."""
        self.done.append(Loaded(self.running.pop(0), object(), 0.1, error))

    def poll(self) -> list[Loaded]:
        done, self.done = self.done, []
        return done

    def wait(self, draft: int) -> None:
        while draft in self.running:
            self.finish()

    def fraction(self, draft: int) -> float:
        return 0.5

    def close(self) -> None: ...
