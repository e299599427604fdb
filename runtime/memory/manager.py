"""The memory manager: one byte budget shared by drafts and stored KV.

    budget = workspace | resident and loading drafts (with their KV) | stored KV blocks in memory | free
    disk                                                             | copies of KV blocks, up to ``disk_bytes``

A load reserves its bytes before it starts, so the sum never exceeds the budget. Room is made by dropping what is of
least value per byte within a class: the time to bring it back, weighted by how often and how lately it was used.
Part of the budget can be set aside, for as long as others need the machine's memory.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from runtime.core import Counters, DraftSpec, MemoryConfig, Victim
from runtime.memory.base import KVDisk, Loaded, Loader
from runtime.memory.kv_store import KVStore
from runtime.memory.prefixes import USE_HALF_LIFE_S, Prefixes
from runtime.memory.retries import MOST_FAILURES, Retries
from runtime.profile import CostModel

LOGGER = logging.getLogger(__name__)


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
    dropped, nor is a loading draft or stored KV that is held (see ``Prefixes``).

    Attributes:
        aside_bytes: Part of the budget that must not be used now, see ``set_aside``.
        retries: Which drafts that could not be loaded may be tried again; as it comes, none.
        on_evict: Called with a draft that is given up, so that others let go of it before its room is taken.
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
        self.prefixes = Prefixes(self.kv, loader, costs, self, config.disk_bytes)
        self.states = [DraftState(Residency.STORED if d.loadable else Residency.RESIDENT) for d in drafts]
        self.loads = 0
        self.wasted_loads = 0
        self.evictions = 0
        self.aside_bytes = 0
        self.retries = Retries()
        self.on_evict: Callable[[int], None] = lambda draft: None
        self._draft_bytes = config.workspace_bytes + sum(d.bytes for d in drafts if not d.loadable)
        self.peak_bytes = self.used_bytes

    @property
    def used_bytes(self) -> int:
        """Workspace, drafts and KV entries together."""
        return self._draft_bytes + self.kv.bytes

    @property
    def budget_bytes(self) -> int:
        """What may be used now: the budget without what is set aside."""
        return self.config.budget_bytes - self.aside_bytes

    @property
    def free_bytes(self) -> int:
        """What is left of the budget; negative while more is in use than may be since some was set aside."""
        return self.budget_bytes - self.used_bytes

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
        return self.states[draft].failed is None and fixed + self.drafts[draft].bytes <= self.budget_bytes

    def can_prefetch(self, draft: int) -> bool:
        """Stored, healthy, and fitting beside the loads already on their way."""
        if self.states[draft].residency is not Residency.STORED or not self.could_ever_fit(draft):
            return False
        return self.drafts[draft].bytes <= self.could_free()

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
        for draft in self.retries.due():
            self.states[draft].failed = None
        arrived = []
        for loaded in self.loader.poll():
            job = loaded.job
            if not isinstance(job, int):
                self.prefixes.finish(job, loaded)
            elif self._arrive(job, loaded):
                arrived.append(job)
        return arrived

    def _arrive(self, draft: int, loaded: Loaded) -> bool:
        """Take in a finished draft load; whether it brought the draft."""
        state, name = self.states[draft], self.drafts[draft].name
        if loaded.error is None:
            state.residency, state.payload, state.used_since_load = Residency.RESIDENT, loaded.payload, False
            if self.retries.succeed(draft):
                LOGGER.warning("draft %s could be loaded again and is used", name)
            return True
        state.residency, state.failed = Residency.STORED, loaded.error
        self._draft_bytes -= self.drafts[draft].bytes
        failures = self.retries.fail(draft)
        if failures in (1, MOST_FAILURES):
            LOGGER.warning("draft %s cannot be loaded, decoding goes on without it: %s", name, loaded.error)
        return False

    def prefetch(self, draft: int, victim: Victim, keep: int | None, now_s: float) -> bool:
        """Reserve room and start a background load. False if room cannot be made without dropping ``keep``."""
        if self.states[draft].residency is not Residency.STORED:
            return False
        if not self.make_room(self.drafts[draft].bytes, victim, keep, now_s):
            return False
        self.states[draft].residency = Residency.LOADING
        self._draft_bytes += self.drafts[draft].bytes
        self.loads += 1
        self.loader.start(draft)
        return True

    def load_now(self, draft: int, victim: Victim, now_s: float) -> bool:
        """Load and stall until the draft is resident. False if it cannot be had."""
        if self.states[draft].residency is Residency.STORED and not (
            self.could_ever_fit(draft) and self.prefetch(draft, victim, None, now_s)
        ):
            return False
        if self.loading(draft):
            self.loader.wait(draft)
            self.poll()
        return self.resident(draft)

    # -- room ----------------------------------------------------------------------------------------------------

    def set_aside(self, aside_bytes: int, keep: int | None, now_s: float) -> None:
        """Do without a part of the budget until told otherwise; 0 gives it all back.

        What is over the rest of the budget is dropped at once, stored KV first, then drafts. What is in use stays, so
        that more may be taken for a while than is left: call again to go on. Nothing is loaded, nothing waits.

        Args:
            aside_bytes: How much; more than the budget means all of it.
            keep: A draft that stays.
            now_s: Session time.
        """
        self.aside_bytes = min(max(aside_bytes, 0), self.config.budget_bytes)
        while self.free_bytes < 0 and (self._drop_kv(now_s) or self._drop_draft(keep, now_s)):
            pass

    def make_room(self, needed_bytes: int, first: Victim, keep: int | None, now_s: float) -> bool:
        """Drop things of class ``first``, then of the other class, until ``needed_bytes`` are free.

        Nothing is dropped if it would not suffice.
        """
        if needed_bytes > self.free_bytes and needed_bytes > self.could_free(keep):
            return False
        for victim in (first, Victim(1 - first)):
            while needed_bytes > self.free_bytes:
                if not (self._drop_draft(keep, now_s) if victim is Victim.DRAFTS else self._drop_kv(now_s)):
                    break
        fits = needed_bytes <= self.free_bytes
        if fits:  # the caller takes it now
            self.peak_bytes = max(self.peak_bytes, self.used_bytes + needed_bytes)
        return fits

    def evictable_draft(self, keep: int | None) -> bool:
        """Whether there is a resident draft that may be dropped."""
        return any(self._evictable(d, keep) for d in range(len(self.drafts)))

    def _evictable(self, draft: int, keep: int | None) -> bool:
        return draft != keep and self.drafts[draft].loadable and self.resident(draft)

    def could_free(self, keep: int | None = None) -> int:
        """Bytes that would be free if all that may go were dropped; negative if what stays is over the budget."""
        return self.budget_bytes - self._unmovable_bytes(keep)

    def _unmovable_bytes(self, keep: int | None) -> int:
        movable = sum(d.bytes for i, d in enumerate(self.drafts) if self._evictable(i, keep))
        return self._draft_bytes - movable + self.kv.held_bytes

    def _recent_uses(self, state: DraftState, now_s: float) -> float:
        return float(state.uses * 0.5 ** ((now_s - state.last_used_s) / USE_HALF_LIFE_S))

    def _draft_value(self, draft: int, now_s: float) -> float:
        state = self.states[draft]
        return self.costs.load_s(draft) * (0.1 + self._recent_uses(state, now_s)) / self.drafts[draft].bytes

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
        self.on_evict(draft)
        return True

    def _drop_kv(self, now_s: float) -> bool:
        dropped = self.kv.drop_least(partial(self.prefixes.value, now_s))
        self.evictions += dropped
        return dropped
