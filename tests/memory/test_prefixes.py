"""Stored prefixes when reads and writes fail, overlap and outlive what they were for."""

from __future__ import annotations

import logging

import pytest

from runtime.core import BLOCK_TOKENS, MemoryConfig, Victim
from runtime.memory.base import WriteKV
from runtime.memory.kv_tree import Tier
from runtime.memory.manager import MemoryManager
from tests.factories import HandLoader, make_costs, make_specs
from tests.memory.test_manager import FakeDisk, copies, text

N = BLOCK_TOKENS
BLOCK_BYTES = N * 10


class Deleting(FakeDisk):
    """Remembers what was deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete(self, node: object) -> None:
        self.deleted.append(node.name())  # type: ignore[attr-defined]


def opened(disk_blocks: int, kv_blocks: int = 20) -> tuple[MemoryManager, HandLoader, Deleting]:
    loader, disk = HandLoader(), Deleting()
    config = MemoryConfig(kv_blocks * BLOCK_BYTES, 0, 10, disk_blocks * BLOCK_BYTES)
    return MemoryManager(config, make_specs(("a",)), loader, make_costs(("a",)), disk), loader, disk


def keep(manager: MemoryManager, blocks: int, seed: int = 0) -> int:
    return manager.prefixes.retain(text(seed, blocks * N), copies, Victim.KV, 0.0)


def finish(manager: MemoryManager, loader: HandLoader, error: str | None = None, good: int | None = None) -> None:
    loader.finish(error, good)
    manager.poll()


def to_disk(manager: MemoryManager, loader: HandLoader, blocks: int, seed: int = 0) -> None:
    keep(manager, blocks, seed)
    while loader.running:
        finish(manager, loader)
    while manager.kv.drop_least(lambda node: 0.0):
        pass
    assert manager.kv.bytes == 0


def on_disk(manager: MemoryManager) -> list[int]:
    return sorted(node.depth for node in manager.kv.tree.nodes() if node.on_disk)


@pytest.mark.parametrize("second_good", [0, 2])
def test_a_read_behind_one_that_turned_out_bad_is_dropped_with_it(second_good: int) -> None:
    manager, loader, _ = opened(10)
    to_disk(manager, loader, 4)
    assert manager.prefixes.expect(text(0, 2 * N + 1), Victim.KV, None, 0.0)
    assert manager.prefixes.expect(text(0, 4 * N + 1), Victim.KV, None, 0.0)
    finish(manager, loader, good=0)
    finish(manager, loader, good=second_good)
    assert manager.kv.bytes == manager.kv.disk_bytes == manager.kv.held_bytes == 0
    assert list(manager.kv.tree.nodes()) == []


def test_a_prefix_whose_read_failed_before_it_was_used_is_not_used() -> None:
    manager, loader, _ = opened(10)
    to_disk(manager, loader, 3)
    manager.prefixes.expect(text(0, 3 * N + 1), Victim.KV, None, 0.0)
    match = manager.prefixes.admit(text(0, 3 * N + 1))
    finish(manager, loader, good=1)
    assert manager.prefixes.reuse(match, Victim.KV, 0.0).match.tokens == N
    manager.prefixes.settle()
    assert manager.kv.held_bytes == 0


def test_a_read_that_could_not_be_done_leaves_the_copies(caplog: pytest.LogCaptureFixture) -> None:
    manager, loader, disk = opened(10)
    to_disk(manager, loader, 3)
    manager.prefixes.expect(text(0, 3 * N + 1), Victim.KV, None, 0.0)
    with caplog.at_level(logging.WARNING):
        finish(manager, loader, "too many open files")
    assert "too many open files" in caplog.text
    assert on_disk(manager) == [0, 1, 2] and not disk.deleted
    assert manager.kv.bytes == manager.kv.held_bytes == 0


def test_what_is_kept_twice_is_counted_once() -> None:
    manager, loader, _ = opened(10)
    to_disk(manager, loader, 1)
    manager.prefixes.expect(text(0, N + 1), Victim.KV, None, 0.0)  # block 0 is on its way all the time
    assert keep(manager, 3) == 2 * N
    assert keep(manager, 3) == 0
    while loader.running:
        finish(manager, loader)
    assert manager.kv.bytes == 3 * BLOCK_BYTES
    while manager.kv.drop_least(lambda node: 0.0):
        pass
    assert manager.kv.bytes == 0 and on_disk(manager) == [0, 1, 2]


@pytest.mark.parametrize("limit", [0, 2])
def test_a_text_that_does_not_fit_on_disk_takes_nothing_from_there(limit: int) -> None:
    manager, loader, _ = opened(2)
    to_disk(manager, loader, 2)
    manager.prefixes.disk.limit_bytes = limit * BLOCK_BYTES
    keep(manager, 3, seed=1)
    assert manager.kv.disk_bytes + manager.prefixes.disk.writing_bytes <= 2 * BLOCK_BYTES
    assert limit or on_disk(manager) == [0, 1]


def test_a_text_is_on_disk_from_its_start_without_a_hole() -> None:
    manager, loader, _ = opened(4)
    for blocks in (2, 6):
        keep(manager, blocks)
        while loader.running:
            finish(manager, loader)
    assert on_disk(manager) == [0, 1, 2, 3]


def test_a_block_behind_one_that_could_not_be_written_is_not_kept_on_disk() -> None:
    manager, loader, disk = opened(10)
    keep(manager, 2)
    keep(manager, 3)
    finish(manager, loader, "No space left on device")
    finish(manager, loader)
    assert on_disk(manager) == [] and manager.kv.disk_bytes == 0
    assert len(disk.deleted) == 3
    assert manager.kv.held_bytes == 0


def test_a_late_write_does_not_delete_the_file_of_its_successor() -> None:
    manager, loader, disk = opened(10)
    keep(manager, 1)
    (old,) = manager.kv.tree.nodes()
    manager.kv._remove(old)
    keep(manager, 1)
    while loader.running:
        loader.finish()
    manager.poll()
    assert disk.deleted == [] and on_disk(manager) == [0]


def test_texts_of_any_length_can_be_given_up() -> None:
    manager, loader, _ = opened(0, kv_blocks=3000)
    assert keep(manager, 2500) == 2500 * N
    (first, *_) = manager.kv.tree.nodes()
    manager.kv._remove(first)
    assert manager.kv.bytes == 0
    assert first.tier is Tier.DISK and first.parent is None and len(first.name()) == 64
    assert not any(isinstance(job, WriteKV) for job in loader.running)


def test_nothing_behind_a_smaller_limit_is_taken_over() -> None:
    manager, loader, _ = opened(10)
    to_disk(manager, loader, 4)
    manager.prefixes.disk.limit_bytes = 2 * BLOCK_BYTES
    assert manager.prefixes.adopt(0.0) == 2
    assert on_disk(manager) == [0, 1]


def test_new_blocks_never_push_out_what_they_stand_on() -> None:
    manager, _, _ = opened(0, kv_blocks=4)
    keep(manager, 2)
    manager.prefixes.retain(text(1, 2 * N), copies, Victim.KV, 100.0)  # used later, so worth more
    assert manager.prefixes.retain(text(0, 4 * N), copies, Victim.KV, 100.0) == 2 * N
    assert manager.kv.match((*text(0, 4 * N), -1)).tokens == 4 * N
