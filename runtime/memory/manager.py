"""The memory manager: one byte budget shared by drafts and stored KV.

    budget = workspace | resident and loading drafts (with their KV) | stored KV blocks in memory | free
    disk                                                             | copies of KV blocks, up to ``disk_bytes``

A load reserves its bytes before it starts, so the sum never exceeds the budget. Room is made by dropping what is of
least value per byte within a class: the time to bring it back, weighted by how often and how lately it was used.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from runtime.core import Counters, DraftSpec, MemoryConfig, Victim
from runtime.memory.base import KVDisk, Loaded, Loader, ReadKV, WriteKV
from runtime.memory.kv_store import Hold, KVStore, Match
from runtime.memory.kv_tree import BLOCK_TOKENS, Node, Tier
from runtime.profile import CostModel

LOGGER = logging.getLogger(__name__)

USE_HALF_LIFE_S = 20.0
"""A use counts half as much after this many seconds."""


class Residency(enum.IntEnum):
    """Where a draft is."""

    STORED = 0
    LOADING = 1
    RESIDENT = 2


@dataclass
class DraftState:
    """Book-keeping of one draft. ``uses`` is a decayed count as of ``last_used_s``."""

    residency: Residency
    payload: Any = None
    uses: float = 0.0
    last_used_s: float = 0.0
    used_since_load: bool = True
    failed: str | None = None


class MemoryManager:
    """Working set of drafts and stored KV under one budget.

    Invariant: ``used_bytes <= max(budget_bytes, bytes that cannot be given up)``; a draft named in ``keep`` is never
    dropped, nor is a loading draft, the prefix that a request is about to reuse, or a block that is read or written.
    """

    def __init__(
        self,
        config: MemoryConfig,
        drafts: tuple[DraftSpec, ...],
        loader: Loader,
        costs: CostModel,
        disk: KVDisk | None = None,
    ) -> None:
        self.config = config
        self.drafts = drafts
        self.loader = loader
        self.costs = costs
        self.kv = KVStore(config.kv_bytes_per_token, disk)
        self._hold: Hold = ()  # the prefix of the request that is being admitted
        self._reading: dict[ReadKV, Hold] = {}
        self._writing: dict[WriteKV, Hold] = {}
        self._writing_bytes = 0
        self.states = [DraftState(Residency.STORED if d.loadable else Residency.RESIDENT) for d in drafts]
        self.loads = 0
        self.wasted_loads = 0
        self.evictions = 0
        self.evicted: list[int] = []
        self._draft_bytes = config.workspace_bytes + sum(d.bytes for d in drafts if not d.loadable)
        self.peak_bytes = self.used_bytes

    @property
    def used_bytes(self) -> int:
        """Workspace, drafts and KV entries together."""
        return self._draft_bytes + self.kv.bytes

    @property
    def free_bytes(self) -> int:
        """What is left of the budget."""
        return self.config.budget_bytes - self.used_bytes

    def resident(self, draft: int) -> bool:
        """Usable now."""
        return self.states[draft].residency is Residency.RESIDENT

    def loading(self, draft: int) -> bool:
        """On its way."""
        return self.states[draft].residency is Residency.LOADING

    def payload(self, draft: int) -> Any:
        """What the loader delivered for a resident draft."""
        return self.states[draft].payload

    def could_ever_fit(self, draft: int) -> bool:
        """Whether the budget could hold this draft if everything else that can go were dropped."""
        fixed = self.config.workspace_bytes + sum(d.bytes for d in self.drafts if not d.loadable)
        return self.states[draft].failed is None and fixed + self.drafts[draft].bytes <= self.config.budget_bytes

    def can_prefetch(self, draft: int) -> bool:
        """Stored, healthy, and fitting beside the loads already on their way."""
        if self.states[draft].residency is not Residency.STORED or not self.could_ever_fit(draft):
            return False
        return self._unmovable_bytes(None) + self.drafts[draft].bytes <= self.config.budget_bytes

    def touch(self, draft: int, now_s: float) -> None:
        """Note that a draft is used in this round."""
        state = self.states[draft]
        state.uses = self._recent_uses(state, now_s) + 1.0
        state.last_used_s = now_s
        state.used_since_load = True

    def count(self, total: Counters) -> None:
        """Write what memory did into the totals of a session."""
        total.loads, total.wasted_loads = self.loads, self.wasted_loads
        total.evictions, total.peak_budget_bytes = self.evictions, self.peak_bytes

    def poll(self) -> list[int]:
        """Take in finished loads. Returns the drafts that became resident."""
        arrived = []
        for loaded in self.loader.poll():
            job = loaded.job
            if isinstance(job, ReadKV):
                self._finish_read(job, loaded)
            elif isinstance(job, WriteKV):
                self._finish_write(job, loaded)
            elif self._arrive(job, loaded):
                arrived.append(job)
        return arrived

    def _arrive(self, draft: int, loaded: Loaded) -> bool:
        """Take in a finished draft load; whether it brought the draft."""
        state = self.states[draft]
        if loaded.error is None:
            state.residency, state.payload, state.used_since_load = Residency.RESIDENT, loaded.payload, False
            return True
        state.residency, state.failed = Residency.STORED, loaded.error
        self._draft_bytes -= self.drafts[draft].bytes
        return False

    def prefetch(self, draft: int, victim: Victim, keep: int | None, now_s: float) -> bool:
        """Reserve room and start a background load. False if room cannot be made without dropping ``keep``."""
        if self.states[draft].residency is not Residency.STORED:
            return False
        if not self.make_room(self.drafts[draft].bytes, victim, keep, now_s):
            return False
        self.states[draft].residency = Residency.LOADING
        self._draft_bytes += self.drafts[draft].bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.loads += 1
        self.loader.start(draft)
        return True

    def load_now(self, draft: int, victim: Victim, now_s: float, forget: Callable[[], None] = lambda: None) -> bool:
        """Load and stall until the draft is resident. False if it cannot be had.

        ``forget`` is called before the wait: whoever still refers to what was evicted lets go of it.
        """
        if self.states[draft].residency is Residency.STORED and not (
            self.could_ever_fit(draft) and self.prefetch(draft, victim, None, now_s)
        ):
            return False
        forget()
        if self.loading(draft):
            self.loader.wait(draft)
            self.poll()
        return self.resident(draft)

    # -- stored KV -----------------------------------------------------------------------------------------------

    def admit(self, prompt_ids: tuple[int, ...]) -> Match:
        """The longest usable stored prefix of a prompt; it stays where it is until ``settle``.

        What would have to come from disk counts only as far as memory could hold it.
        """
        self.settle()
        match = self.kv.match(prompt_ids)
        if match.path:
            self._hold = self.kv.hold(match.path[-1])
        there = len(match.path) - self._blocks_on_disk(match)
        room = self.config.budget_bytes - self._unmovable_bytes(None)
        return match.up_to(there + max(0, room // self.kv.block_bytes))

    def settle(self) -> None:
        """The prefix of the last ``admit`` may be given up again."""
        self.kv.release(self._hold)
        self._hold = ()

    def reuse(self, match: Match, victim: Victim, now_s: float) -> Match:
        """Bring a match into memory, stalling until it is there; returns what came of it, all of it in memory.

        Its blocks' payloads are good until ``settle``.
        """
        self._read(match, victim, now_s)
        for job in [job for job in self._reading if any(node in job.nodes for node in match.path)]:
            self.loader.wait(job)
        self.poll()
        there = 0
        for node in match.path:
            if node.tier is not Tier.MEMORY or node.parent is None:
                break
            there += 1
            node.hits += 1
            node.last_used_s = now_s
        return match.up_to(there)._replace(disk_tokens=0)

    def expect(self, prompt_ids: tuple[int, ...], victim: Victim, now_s: float) -> bool:
        """A request with this prompt will come: start to bring its stored prefix from disk. Whether there was need."""
        return self._read(self.kv.match(prompt_ids), victim, now_s)

    def flush(self) -> None:
        """Stall until all copies to disk are written."""
        for job in list(self._writing):
            self.loader.wait(job)
        self.poll()

    def retainable(self, tokens: tuple[int, ...]) -> int:
        """Bytes that keeping the KV of these tokens would take; 0 if nothing of it is missing or it cannot fit."""
        above, start, end = self.kv.missing(tokens)
        needed_bytes = (end - start) * self.config.kv_bytes_per_token
        stand_on = sum(not node.holds for node in above.up()) * self.kv.block_bytes
        fits = self._unmovable_bytes(None) + stand_on + needed_bytes <= self.config.budget_bytes
        return needed_bytes if fits else 0

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
        above, start, end = self.kv.missing(tokens)
        hold = self.kv.hold(above)  # making room must not take what the new blocks stand on
        try:
            if start == end or not self.make_room((end - start) * self.config.kv_bytes_per_token, victim, None, now_s):
                return 0
            added = self.kv.insert(tokens, copy(start, end), now_s)
        finally:
            self.kv.release(hold)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._write_behind(added, now_s)
        return end - start

    def _blocks_on_disk(self, match: Match) -> int:
        return sum(node.tier is Tier.DISK for node in match.path)

    def _read(self, match: Match, victim: Victim, now_s: float) -> bool:
        nodes = tuple(node for node in match.path if node.tier is Tier.DISK)
        if not nodes:
            return False
        hold = self.kv.hold(nodes[-1])
        if not self.make_room(len(nodes) * self.kv.block_bytes, victim, None, now_s):
            self.kv.release(hold)
            return False
        self.kv.begin_read(nodes)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        job = ReadKV(nodes)
        self._reading[job] = hold
        self.loader.start(job)
        return True

    def _write_behind(self, nodes: Sequence[Node], now_s: float) -> None:
        """Copies of new blocks go to disk as far as there is room worth more than what lies there."""
        fresh = [node for node in nodes if not node.on_disk]
        room = self.config.disk_bytes - self._writing_bytes
        while fresh and self.kv.disk_bytes + len(fresh) * self.kv.block_bytes > room:
            if not self.kv.drop_least_on_disk(partial(self._block_value, now_s), nodes):
                fresh.pop()
        if fresh:
            job = WriteKV(tuple(fresh))
            self._writing[job] = self.kv.hold(fresh[-1])
            self._writing_bytes += len(fresh) * self.kv.block_bytes
            self.loader.start(job)

    def _finish_read(self, job: ReadKV, loaded: Loaded) -> None:
        self.kv.end_read(job.nodes, loaded.payload or ())
        self.kv.release(self._reading.pop(job))

    def _finish_write(self, job: WriteKV, loaded: Loaded) -> None:
        self._writing_bytes -= len(job.nodes) * self.kv.block_bytes
        if loaded.error is None:
            self.kv.wrote(job.nodes)
        else:
            LOGGER.warning("stored KV is no longer copied to disk: %s", loaded.error)
            self.config = replace(self.config, disk_bytes=0)
        self.kv.release(self._writing.pop(job))

    # -- room ----------------------------------------------------------------------------------------------------

    def make_room(self, needed_bytes: int, first: Victim, keep: int | None, now_s: float) -> bool:
        """Drop things of class ``first``, then of the other class, until ``needed_bytes`` are free.

        Nothing is dropped if it would not suffice.
        """
        if needed_bytes <= self.free_bytes:
            return True
        if self._unmovable_bytes(keep) + needed_bytes > self.config.budget_bytes:
            return False
        for victim in (first, Victim(1 - first)):
            while needed_bytes > self.free_bytes:
                if not (self._drop_draft(keep, now_s) if victim is Victim.DRAFTS else self._drop_kv(now_s)):
                    break
        return needed_bytes <= self.free_bytes

    def evictable_draft(self, keep: int | None) -> bool:
        """Whether there is a resident draft that may be dropped."""
        return any(self._evictable(d, keep) for d in range(len(self.drafts)))

    def _evictable(self, draft: int, keep: int | None) -> bool:
        return draft != keep and self.drafts[draft].loadable and self.resident(draft)

    def _unmovable_bytes(self, keep: int | None) -> int:
        movable = sum(d.bytes for i, d in enumerate(self.drafts) if self._evictable(i, keep))
        return self._draft_bytes - movable + self.kv.held_bytes

    def _recent_uses(self, state: DraftState, now_s: float) -> float:
        return float(state.uses * 0.5 ** ((now_s - state.last_used_s) / USE_HALF_LIFE_S))

    def _draft_value(self, draft: int, now_s: float) -> float:
        state = self.states[draft]
        return self.costs.load_s(draft) * (0.1 + self._recent_uses(state, now_s)) / self.drafts[draft].bytes

    def _block_value(self, now_s: float, node: Node) -> float:
        """Seconds that having a block in memory saves, by how likely it is used again, per byte."""
        at = node.depth * BLOCK_TOKENS
        back_s = self.costs.prefill_s(BLOCK_TOKENS, at)
        if node.on_disk:
            back_s = min(back_s, self.costs.kv_load_s(BLOCK_TOKENS))
        age = float(0.5 ** ((now_s - node.last_used_s) / USE_HALF_LIFE_S))
        return back_s * (0.5 + node.hits) * age / self.kv.block_bytes

    def _drop_draft(self, keep: int | None, now_s: float) -> bool:
        candidates = [d for d in range(len(self.drafts)) if self._evictable(d, keep)]
        if not candidates:
            return False
        draft = min(candidates, key=lambda d: self._draft_value(d, now_s))
        state = self.states[draft]
        self.wasted_loads += not state.used_since_load
        state.residency, state.payload = Residency.STORED, None
        self._draft_bytes -= self.drafts[draft].bytes
        self.evictions += 1
        self.evicted.append(draft)
        return True

    def _drop_kv(self, now_s: float) -> bool:
        dropped = self.kv.drop_least(partial(self._block_value, now_s))
        self.evictions += dropped
        return dropped
