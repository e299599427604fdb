"""The memory manager: bytes are conserved, the budget holds, what is in use stays."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.core import Victim
from runtime.memory.manager import MemoryManager, Residency
from tests.factories import HandLoader, make_costs, make_memory_config, make_specs

NAMES = ("a", "b", "c", "lookup")
drafts = st.integers(0, 2)
victims = st.sampled_from(list(Victim))


class Memory(RuleBasedStateMachine):
    """Any interleaving of loads, failures, uses, KV entries and evictions."""

    def __init__(self) -> None:
        super().__init__()
        self.loader = HandLoader()
        self.manager = MemoryManager(make_memory_config(), make_specs(NAMES), self.loader, make_costs(NAMES))
        self.now_s = 0.0
        self.kept: int | None = None

    @rule(draft=drafts, victim=victims)
    def prefetch(self, draft: int, victim: Victim) -> None:
        before = self.manager.states[draft].residency
        started = self.manager.prefetch(draft, victim, self.kept, self.now_s)
        assert not started or before is Residency.STORED
        assert not started or self.manager.loading(draft)

    @precondition(lambda self: self.loader.running)
    @rule(fails=st.booleans())
    def finish(self, fails: bool) -> None:
        draft = self.loader.running[0]
        self.loader.finish("disk gone" if fails else None)
        self.manager.poll()
        assert self.manager.resident(draft) is not fails
        assert not fails or not self.manager.could_ever_fit(draft)

    @rule(draft=drafts)
    def use(self, draft: int) -> None:
        self.now_s += 1.0
        if self.manager.resident(draft):
            self.manager.touch(draft, self.now_s)
            self.kept = draft

    @rule()
    def release(self) -> None:
        self.kept = None

    @rule(start=st.integers(0, 3), length=st.integers(1, 150), victim=victims)
    def retain(self, start: int, length: int, victim: Victim) -> None:
        tokens = tuple(range(start, start + length))
        expected = self.manager.can_retain(length, self.kept)
        assert self.manager.retain(tokens, None, victim, self.kept, self.now_s) is expected
        if expected:
            assert self.manager.match((*tokens, 9999)).tokens == length

    @invariant()
    def bytes_add_up(self) -> None:
        manager = self.manager
        held = sum(s.bytes for i, s in enumerate(manager.drafts) if s.loadable and not _stored(manager, i))
        assert manager.used_bytes == 100 + held + sum(entry.bytes for entry in manager.kv.entries)

    @invariant()
    def budget_holds(self) -> None:
        assert self.manager.used_bytes <= self.manager.config.budget_bytes
        assert self.manager.peak_bytes <= self.manager.config.budget_bytes

    @invariant()
    def what_is_in_use_stays(self) -> None:
        assert self.kept is None or self.manager.resident(self.kept)


def _stored(manager: MemoryManager, draft: int) -> bool:
    return manager.states[draft].residency is Residency.STORED


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_least_valuable_draft_goes_first() -> None:
    loader = HandLoader()
    manager = MemoryManager(make_memory_config(), make_specs(NAMES), loader, make_costs(NAMES))
    for draft in (0, 1):
        manager.prefetch(draft, Victim.DRAFTS, None, 0.0)
        loader.finish()
    manager.poll()
    manager.touch(0, 1.0)
    assert manager.prefetch(2, Victim.DRAFTS, None, 2.0)
    assert manager.resident(0) and not manager.resident(1)
    assert manager.wasted_loads == 1


def test_victim_class_is_respected() -> None:
    loader = HandLoader()
    manager = MemoryManager(make_memory_config(), make_specs(NAMES), loader, make_costs(NAMES))
    manager.prefetch(0, Victim.DRAFTS, None, 0.0)
    loader.finish()
    manager.poll()
    assert manager.retain(tuple(range(100)), None, Victim.KV, None, 0.0)
    assert manager.prefetch(1, Victim.KV, None, 0.0)
    assert manager.resident(0) and not manager.kv.entries


def test_load_now_stalls_until_resident() -> None:
    manager = MemoryManager(make_memory_config(), make_specs(NAMES), HandLoader(), make_costs(NAMES))
    assert manager.load_now(1, Victim.DRAFTS, 0.0)
    assert manager.resident(1)


def test_a_draft_larger_than_the_budget_is_never_loaded() -> None:
    manager = MemoryManager(make_memory_config(900), make_specs(NAMES), HandLoader(), make_costs(NAMES))
    assert not manager.could_ever_fit(0) and not manager.can_prefetch(0)
    assert not manager.load_now(0, Victim.DRAFTS, 0.0)
