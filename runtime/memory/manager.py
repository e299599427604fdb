"""The memory manager: one byte budget shared by drafts and stored KV.

    budget = workspace | resident and loading drafts (with their KV) | stored KV entries | free

A load reserves its bytes before it starts, so the sum never exceeds the budget. Room is made by dropping what is of
least value per byte within a class: the time to bring it back, weighted by how often and how lately it was used.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from runtime.core import DraftSpec, MemoryConfig, Victim
from runtime.memory.base import Loader
from runtime.memory.kv_store import KVEntry, KVStore, Match
from runtime.profile import CostModel

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
    dropped; a loading draft is never dropped.
    """

    def __init__(self, config: MemoryConfig, drafts: tuple[DraftSpec, ...], loader: Loader, costs: CostModel) -> None:
        self.config = config
        self.drafts = drafts
        self.loader = loader
        self.costs = costs
        self.kv = KVStore(config.kv_bytes_per_token)
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

    def can_retain(self, tokens: int, keep: int | None) -> bool:
        """Whether a KV entry of ``tokens`` tokens fits after dropping all that may go."""
        return self._unmovable_bytes(keep) + tokens * self.config.kv_bytes_per_token <= self.config.budget_bytes

    def touch(self, draft: int, now_s: float) -> None:
        """Note that a draft is used in this round."""
        state = self.states[draft]
        state.uses = self._recent_uses(state, now_s) + 1.0
        state.last_used_s = now_s
        state.used_since_load = True

    def poll(self) -> list[int]:
        """Take in finished loads. Returns the drafts that became resident."""
        arrived = []
        for loaded in self.loader.poll():
            state = self.states[loaded.draft]
            if loaded.error is None:
                state.residency, state.payload, state.used_since_load = Residency.RESIDENT, loaded.payload, False
                arrived.append(loaded.draft)
            else:
                state.residency, state.failed = Residency.STORED, loaded.error
                self._draft_bytes -= self.drafts[loaded.draft].bytes
        return arrived

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

    def match(self, prompt_ids: tuple[int, ...]) -> Match:
        """Longest usable stored prefix of a prompt."""
        return self.kv.match(prompt_ids)

    def retain(self, tokens: tuple[int, ...], payload: Any, victim: Victim, keep: int | None, now_s: float) -> bool:
        """Keep the KV of a request. False if room cannot be made."""
        if not self.make_room(len(tokens) * self.config.kv_bytes_per_token, victim, keep, now_s):
            return False
        self.kv.insert(tokens, payload, now_s)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return True

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
        return self._draft_bytes - movable

    def _recent_uses(self, state: DraftState, now_s: float) -> float:
        return float(state.uses * 0.5 ** ((now_s - state.last_used_s) / USE_HALF_LIFE_S))

    def _draft_value(self, draft: int, now_s: float) -> float:
        state = self.states[draft]
        return self.costs.load_s(draft) * (0.1 + self._recent_uses(state, now_s)) / self.drafts[draft].bytes

    def _entry_value(self, entry: KVEntry, now_s: float) -> float:
        saved_s = self.costs.prefill_s(len(entry.tokens), 0) - self.costs.kv_restore_s(len(entry.tokens))
        age = float(0.5 ** ((now_s - entry.last_used_s) / USE_HALF_LIFE_S))
        return max(saved_s, 0.0) * (0.5 + entry.hits) * age / entry.bytes

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
        if not self.kv.entries:
            return False
        self.kv.remove(min(self.kv.entries, key=lambda entry: self._entry_value(entry, now_s)))
        self.evictions += 1
        return True
