"""Stored prefixes in use: found for a request, brought from disk, kept at its end, copied to disk behind its back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from runtime.core import BLOCK_TOKENS, Victim
from runtime.memory.base import Loaded, Loader, ReadKV, WriteKV
from runtime.memory.kv_store import Hold, KVStore, Match
from runtime.memory.kv_tree import Node, Tier
from runtime.profile import CostModel

LOGGER = logging.getLogger(__name__)

USE_HALF_LIFE_S = 20.0
"""A use counts half as much after this many seconds."""


class Budget(Protocol):
    """What prefixes ask of the memory manager."""

    def make_room(self, needed_bytes: int, first: Victim, keep: int | None, now_s: float) -> bool:
        """Drop things until so many bytes are free; nothing is dropped if it would not suffice."""
        ...

    def could_free(self, keep: int | None = None) -> int:
        """Bytes that would be free if all that may go were dropped; negative if what stays is over the budget."""
        ...

    def poll(self) -> list[int]:
        """Take in finished jobs."""
        ...


class Reused(NamedTuple):
    """What came of reusing a prefix.

    Attributes:
        match: The prefix, all of it in memory.
        disk_tokens: Of its tokens, those that were on disk or on their way when it was asked for.
        waited: Whether the caller stalled for them.
    """

    match: Match = Match()
    disk_tokens: int = 0
    waited: bool = False

    @property
    def payloads(self) -> list[Any]:
        """Of its blocks; good until ``settle``."""
        return [node.payload for node in self.match.path]


@dataclass
class Disk:
    """How much may lie on disk, how much is on its way there, and why nothing is written any more, if so."""

    limit_bytes: int
    writing_bytes: int = 0
    failed: str | None = None


class Prefixes:
    """Uses a KV store within a budget.

    What is held stays where it is: the prefix of the request that is being admitted, a block that is read or written,
    and all blocks above them. Only a block whose file turns out bad is dropped in spite of that, with all behind it.

    Args:
        store: The blocks.
        loader: Reads and writes them.
        costs: What it costs to compute or to read them again.
        budget: Makes room.
        disk_bytes: Most that copies may take on disk.
    """

    def __init__(self, store: KVStore, loader: Loader, costs: CostModel, budget: Budget, disk_bytes: int) -> None:
        self.store, self.loader, self.costs, self.budget = store, loader, costs, budget
        self.disk = Disk(disk_bytes)
        self._hold: Hold = ()  # the prefix of the request that is being admitted
        self._reading: dict[ReadKV, Hold] = {}
        self._writing: dict[WriteKV, Hold] = {}

    # -- a request begins ----------------------------------------------------------------------------------------

    def admit(self, prompt_ids: tuple[int, ...]) -> Match:
        """The longest usable stored prefix of a prompt; it stays where it is until ``settle``.

        What would have to come from disk counts only as far as memory could hold it.
        """
        self.settle()
        match = self.store.match(prompt_ids)
        if match.path:
            self._hold = self.store.hold(match.path[-1])
        there = sum(node.tier is not Tier.DISK for node in match.path)
        return match.up_to(there + max(0, self.budget.could_free() // self.store.block_bytes))

    def settle(self) -> None:
        """The prefix of the last ``admit`` may be given up again."""
        self.store.release(self._hold)
        self._hold = ()

    def reuse(self, match: Match, victim: Victim, now_s: float) -> Reused:
        """Bring a match into memory, stalling until it is there."""
        match = match.up_to(_leading(match.path, lambda node: node.parent is not None))  # a read may have failed since
        in_memory = _leading(match.path, lambda node: node.tier is Tier.MEMORY)
        self._read(match, victim, None, now_s)
        jobs = [job for job in self._reading if any(node in job.nodes for node in match.path)]
        for job in jobs:
            self.loader.wait(job)
        self.budget.poll()
        got = match.up_to(_leading(match.path, lambda node: node.tier is Tier.MEMORY and node.parent is not None))
        for node in got.path:
            node.hits += 1
            node.last_used_s = now_s
        disk_tokens = max(0, got.tokens - in_memory * BLOCK_TOKENS)
        return Reused(got._replace(disk_tokens=0), disk_tokens, bool(jobs))

    def expect(self, prompt_ids: tuple[int, ...], victim: Victim, keep: int | None, now_s: float) -> bool:
        """A request with this prompt will come: start to bring its stored prefix from disk. Whether there was need."""
        return self._read(self.store.match(prompt_ids), victim, keep, now_s)

    # -- a request ends ------------------------------------------------------------------------------------------

    def retainable(self, tokens: tuple[int, ...]) -> int:
        """Bytes that keeping the KV of these tokens would take; 0 if nothing of it is missing or it cannot fit."""
        above, start, end = self.store.missing(tokens)
        blocks = (end - start) // BLOCK_TOKENS
        stand_on = sum(not node.holds for node in above.up())
        fits = (blocks + stand_on) * self.store.block_bytes <= self.budget.could_free()
        return blocks * self.store.block_bytes if fits else 0

    def retain(
        self, tokens: tuple[int, ...], copy: Callable[[int, int], Sequence[Any]], victim: Victim, now_s: float
    ) -> int:
        """Keep the KV of a text; returns the tokens newly kept, 0 if room cannot be made.

        Args:
            tokens: The text.
            copy: Makes payloads of the blocks from one token to another; called once room is there.
            victim: Which class gives up memory first.
            now_s: Session time.
        """
        above, start, end = self.store.missing(tokens)
        hold = self.store.hold(above)  # making room must not take what the new blocks stand on
        try:
            needed_bytes = (end - start) // BLOCK_TOKENS * self.store.block_bytes
            if start == end or not self.budget.make_room(needed_bytes, victim, None, now_s):
                return 0
            added = self.store.insert(tokens, copy(start, end), now_s)
        finally:
            self.store.release(hold)
        if added:
            self._write_behind(added[-1], now_s)
        return len(added) * BLOCK_TOKENS

    def flush(self) -> None:
        """Stall until all copies to disk are written."""
        for job in list(self._writing):
            self.loader.wait(job)
        self.budget.poll()

    def adopt(self, now_s: float) -> int:
        """Take in what earlier runs left on disk, as far as the limit allows; returns how many blocks."""
        self.store.adopt(now_s)
        while self.store.disk_bytes > self.disk.limit_bytes:
            if not self.store.drop_least_on_disk(partial(self.value, now_s)):
                break
        return self.store.disk_bytes // self.store.block_bytes

    def value(self, now_s: float, node: Node) -> float:
        """Seconds that having a block in memory saves, by how likely it is used again, per byte."""
        back_s = self.costs.prefill_s(BLOCK_TOKENS, node.depth * BLOCK_TOKENS)
        if node.on_disk:
            back_s = min(back_s, self.costs.kv_load_s(BLOCK_TOKENS))
        age = float(0.5 ** ((now_s - node.last_used_s) / USE_HALF_LIFE_S))
        return back_s * (0.5 + node.hits) * age / self.store.block_bytes

    # -- jobs ----------------------------------------------------------------------------------------------------

    def finish(self, job: ReadKV | WriteKV, loaded: Loaded) -> None:
        """Take in a finished job."""
        if isinstance(job, ReadKV):
            self._finish_read(job, loaded)
        else:
            self._finish_write(job, loaded)

    def _read(self, match: Match, victim: Victim, keep: int | None, now_s: float) -> bool:
        nodes = tuple(node for node in match.path if node.tier is Tier.DISK)
        if not nodes:
            return False
        hold = self.store.hold(nodes[-1])
        if not self.budget.make_room(len(nodes) * self.store.block_bytes, victim, keep, now_s):
            self.store.release(hold)
            return False
        self.store.begin_read(nodes)
        self._start(ReadKV(nodes), self._reading, hold)
        return True

    def _write_behind(self, last: Node, now_s: float) -> None:
        """A text goes to disk from its start; the least valuable copies make room, its end is left out if need be."""
        room = self.disk.limit_bytes - self.disk.writing_bytes
        written = {node for job in self._writing for node in job.nodes}
        fresh = [node for node in last.up() if not node.on_disk and node not in written][::-1]
        fresh = fresh[: max(0, room // self.store.block_bytes)]
        while fresh and self.store.disk_bytes + len(fresh) * self.store.block_bytes > room:
            if not self.store.drop_least_on_disk(partial(self.value, now_s), tuple(fresh[-1].up())):
                fresh.pop()
        if fresh:
            self.disk.writing_bytes += len(fresh) * self.store.block_bytes
            self._start(WriteKV(tuple(fresh)), self._writing, self.store.hold(fresh[-1]))

    def _start(self, job: Any, running: dict[Any, Hold], hold: Hold) -> None:
        job.nodes[-1].name()  # made here, so that the loader's thread need not walk the tree
        running[job] = hold
        self.loader.start(job)

    def _finish_read(self, job: ReadKV, loaded: Loaded) -> None:
        if loaded.error is None:
            self.store.end_read(job.nodes, loaded.payload)
        else:
            LOGGER.warning("stored KV could not be read and is computed again: %s", loaded.error)
            self.store.abandon_read(job.nodes)
        self.store.release(self._reading.pop(job))

    def _finish_write(self, job: WriteKV, loaded: Loaded) -> None:
        self.disk.writing_bytes -= len(job.nodes) * self.store.block_bytes
        if loaded.error is None:
            self.store.wrote(job.nodes)
        else:
            if self.disk.failed is None:  # others may have been on their way
                LOGGER.warning("stored KV is no longer copied to disk: %s", loaded.error)
            self.disk.limit_bytes, self.disk.failed = 0, loaded.error
            self.store.did_not_write(job.nodes)
        self.store.release(self._writing.pop(job))


def _leading(path: Sequence[Node], fits: Callable[[Node], bool]) -> int:
    """How many blocks at the start of a path fit."""
    return next((index for index, node in enumerate(path) if not fits(node)), len(path))
