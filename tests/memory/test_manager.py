"""The memory manager: bytes are conserved, the budget holds, what is in use stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.core import BLOCK_TOKENS, Victim
from runtime.memory.base import ReadKV, StoredBlock, WriteKV
from runtime.memory.kv_store import Match
from runtime.memory.kv_tree import Node, Tier
from runtime.memory.manager import MemoryManager, Residency
from runtime.memory.retries import FIRST_S, MOST_FAILURES, Retries
from tests.factories import HandLoader, make_costs, make_memory_config, make_specs

NAMES = ("a", "b", "c", "lookup")
N = BLOCK_TOKENS
DISK_BYTES = 8 * N * 10
drafts = st.integers(0, 2)
seeds = st.integers(0, 2)
victims = st.sampled_from(list(Victim))


def text(seed: int, length: int) -> tuple[int, ...]:
    """Texts of one of three trunks; two of a trunk share the shorter one's length."""
    return tuple(range(seed * 10_000, seed * 10_000 + length))


class Memory(RuleBasedStateMachine):
    """Any interleaving of loads, failures, uses, KV kept, reused, read, written and given up.

    vllm #9995, #14067: drafts that nobody counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loader = HandLoader()
        self.disk = FakeDisk()
        config = replace(make_memory_config(), disk_bytes=DISK_BYTES)
        self.manager = MemoryManager(config, make_specs(NAMES), self.loader, make_costs(NAMES), self.disk)
        self.now_s = 0.0
        self.kept: int | None = None
        self.most_bytes = self.manager.used_bytes  # in use before the last step
        self.admitted = Match()
        self.in_memory: list[Node] = []

    @rule(draft=drafts, victim=victims)
    def prefetch(self, draft: int, victim: Victim) -> None:
        before = self.manager.states[draft].residency
        started = self.manager.prefetch(draft, victim, self.kept, self.now_s)
        assert not started or before is Residency.STORED
        assert not started or self.manager.loading(draft)

    @precondition(lambda self: self.loader.running)
    @rule(fails=st.booleans(), good=st.integers(0, 8))
    def finish(self, fails: bool, good: int) -> None:
        job = self.loader.running[0]
        fails = fails and not (isinstance(job, WriteKV) and good)  # a full disk ends all writing: let it be rare
        self.loader.finish("disk gone" if fails else None, good)
        self.manager.poll()
        if isinstance(job, int):
            assert self.manager.resident(job) is not fails
            assert not fails or not self.manager.could_ever_fit(job)
        elif isinstance(job, ReadKV):
            there = [node for node in job.nodes[:good] if node.parent is not None]
            assert all(node.tier is (Tier.DISK if fails else Tier.MEMORY) for node in there)
        elif not fails:
            above = job.nodes[0].parent  # if its own write failed, nothing behind it is kept on disk
            assert above is None or all(node.on_disk is (above.on_disk or above.depth < 0) for node in job.nodes)

    @rule(draft=drafts)
    def use(self, draft: int) -> None:
        self.now_s += 1.0
        if self.manager.resident(draft):
            self.manager.touch(draft, self.now_s)
            self.kept = draft

    @rule()
    def release(self) -> None:
        self.kept = None

    @rule(aside=st.integers(-10, 3000) | st.just(0))
    def set_aside(self, aside: int) -> None:
        before = self.manager.used_bytes
        self.manager.set_aside(aside, self.kept, self.now_s)
        manager, budget = self.manager, self.manager.config.budget_bytes
        assert manager.aside_bytes == min(max(aside, 0), budget)
        assert manager.budget_bytes == budget - manager.aside_bytes
        assert manager.used_bytes == before or before > manager.budget_bytes  # nothing goes without need
        assert manager.free_bytes >= 0 or manager.could_free(self.kept) == manager.free_bytes  # all that may go is gone

    @rule(seed=seeds, length=st.integers(1, 200), victim=victims)
    def retain(self, seed: int, length: int, victim: Victim) -> None:
        self.kept = None  # a request is complete
        tokens = text(seed, length)
        needed = self.manager.prefixes.retainable(tokens)
        kept = self.manager.prefixes.retain(tokens, copies, victim, self.now_s)
        assert kept * self.manager.config.kv_bytes_per_token == needed
        if kept:
            assert self.manager.kv.match((*tokens, -1)).tokens >= length // N * N

    @rule(seed=seeds, length=st.integers(1, 220))
    def admit(self, seed: int, length: int) -> None:
        self.admitted = self.manager.prefixes.admit(text(seed, length))
        self.in_memory = [node for node in self.admitted.path if node.tier is Tier.MEMORY]
        assert self.admitted.tokens < length

    @rule(victim=victims)
    def reuse(self, victim: Victim) -> None:
        self.kept = None
        got = self.manager.prefixes.reuse(self.admitted, victim, self.now_s).match
        assert got.tokens == self.admitted.tokens or len(self.in_memory) < len(self.admitted.path)
        assert got.tokens >= min(self.admitted.tokens, len(self.in_memory) * N) or self.broken()
        assert all(node.payload is not None for node in got.path)
        self.manager.prefixes.settle()
        self.admitted, self.in_memory = Match(), []

    @rule(seed=seeds, length=st.integers(1, 220), victim=victims)
    def expect(self, seed: int, length: int, victim: Victim) -> None:
        self.manager.prefixes.expect(text(seed, length), victim, self.kept, self.now_s)

    @invariant()
    def bytes_add_up(self) -> None:
        manager = self.manager
        held = sum(s.bytes for i, s in enumerate(manager.drafts) if s.loadable and not _stored(manager, i))
        blocks = [node for node in manager.kv.tree.nodes() if node.tier is not Tier.DISK]
        assert manager.kv.bytes == len(blocks) * N * 10
        assert manager.used_bytes == 100 + held + manager.kv.bytes
        assert manager.kv.disk_bytes == sum(node.on_disk for node in manager.kv.tree.nodes()) * N * 10

    @invariant()
    def budget_holds(self) -> None:
        assert self.manager.used_bytes <= self.manager.config.budget_bytes
        assert self.manager.peak_bytes <= self.manager.config.budget_bytes
        assert self.manager.used_bytes <= max(self.manager.budget_bytes, self.most_bytes)
        self.most_bytes = self.manager.used_bytes
        assert self.manager.kv.disk_bytes <= DISK_BYTES

    @invariant()
    def what_is_in_use_stays(self) -> None:
        assert self.kept is None or self.manager.resident(self.kept)
        assert all(node.tier is Tier.MEMORY for node in self.in_memory) or self.broken()

    def broken(self) -> bool:
        """A read that failed took blocks of the admitted prefix with it."""
        return any(node.parent is None for node in self.admitted.path)

    @invariant()
    def a_block_has_all_blocks_above_it(self) -> None:
        for node in self.manager.kv.tree.nodes():
            assert node.parent is not None
            above = node.parent if node.parent.parent is not None else None
            assert above is None or node.tier is Tier.DISK or above.tier is not Tier.DISK
            assert node.tier is not Tier.DISK or node.on_disk
            assert (node.payload is None) is (node.tier is not Tier.MEMORY)
            assert above is None or above.on_disk or not node.on_disk
            assert node.memory_children == sum(c.tier is not Tier.DISK for c in node.children.values())


class FakeDisk:
    """A disk that remembers nothing; reads and writes are done by hand in ``HandLoader``."""

    def read(self, nodes: Sequence[Node]) -> list[object]:
        raise NotImplementedError

    def write(self, nodes: Sequence[Node]) -> None:
        raise NotImplementedError

    def delete(self, node: Node) -> None: ...

    def scan(self) -> list[StoredBlock]:
        return []


def copies(start: int, end: int) -> list[object]:
    return [object()] * ((end - start) // N)


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
    assert manager.prefixes.retain(text(0, 100), copies, Victim.KV, 0.0) == 3 * N
    assert manager.prefetch(1, Victim.KV, None, 0.0)
    assert manager.resident(0) and manager.kv.bytes <= 400


def test_load_now_stalls_until_resident() -> None:
    manager = MemoryManager(make_memory_config(), make_specs(NAMES), HandLoader(), make_costs(NAMES))
    assert manager.load_now(1, Victim.DRAFTS, 0.0)
    assert manager.resident(1)


def test_what_is_set_aside_is_given_up_in_order_and_can_be_had_again() -> None:
    loader = HandLoader()
    manager = MemoryManager(make_memory_config(), make_specs(NAMES), loader, make_costs(NAMES))
    for draft in (0, 1):
        manager.prefetch(draft, Victim.DRAFTS, None, 0.0)
        loader.finish()
    manager.poll()
    manager.touch(0, 1.0)
    assert manager.prefixes.retain(text(0, N), copies, Victim.KV, 1.0) == N
    given_up: list[int] = []
    manager.on_evict = given_up.append
    manager.set_aside(2500 - 2100, None, 2.0)  # KV is enough
    assert manager.kv.bytes == 0 and given_up == []
    manager.set_aside(1400, 1, 2.0)
    assert given_up == [0] and manager.resident(1)  # though it was used, and the other was not: that one is in use now
    assert not manager.prefetch(0, Victim.DRAFTS, 1, 2.0)
    assert manager.could_ever_fit(0)
    manager.set_aside(2500, 1, 2.0)
    assert manager.resident(1) and manager.free_bytes < 0 and not manager.could_ever_fit(0)
    assert manager.prefixes.retainable(text(0, N)) == 0
    manager.set_aside(0, 1, 3.0)
    assert manager.resident(1) and manager.prefetch(0, Victim.DRAFTS, 1, 3.0)


def test_a_draft_that_failed_may_be_tried_again_when_its_time_has_come(caplog: pytest.LogCaptureFixture) -> None:
    loader, now_s, hope = HandLoader(), [0.0], [True]
    manager = MemoryManager(make_memory_config(), make_specs(NAMES), loader, make_costs(NAMES))
    manager.retries = Retries(lambda draft: hope[0], lambda: now_s[0])
    for failures in range(1, MOST_FAILURES + 1):
        assert manager.prefetch(0, Victim.DRAFTS, None, 0.0)
        loader.finish("gone")
        manager.poll()
        assert not manager.can_prefetch(0) and manager.states[0].failed == "gone"
        now_s[0] += FIRST_S * 2 ** (failures - 1)
        manager.poll()
        assert manager.can_prefetch(0) is (failures < MOST_FAILURES)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("draft a cannot be loaded" in line and "gone" in line for line in told)
    now_s[0] += 1e6
    manager.poll()
    assert not manager.can_prefetch(0)


def test_a_draft_that_came_back_is_told_and_begins_afresh(caplog: pytest.LogCaptureFixture) -> None:
    loader, now_s = HandLoader(), [0.0]
    manager = MemoryManager(make_memory_config(), make_specs(NAMES), loader, make_costs(NAMES))
    manager.retries = Retries(lambda draft: True, lambda: now_s[0])
    for error in ("gone", None):
        assert manager.prefetch(0, Victim.DRAFTS, None, 0.0)
        loader.finish(error)
        now_s[0] += FIRST_S
        manager.poll()
        manager.poll()
    assert manager.resident(0) and "draft a could be loaded again" in caplog.text
    assert manager.retries.fail(0) == 1


def test_a_draft_larger_than_the_budget_is_never_loaded() -> None:
    manager = MemoryManager(make_memory_config(900), make_specs(NAMES), HandLoader(), make_costs(NAMES))
    assert not manager.could_ever_fit(0) and not manager.can_prefetch(0)
    assert not manager.load_now(0, Victim.DRAFTS, 0.0)
