"""The byte budget of one stream: ``runtime.memory.manager.MemoryManager``, and what of KV hangs on it."""

from __future__ import annotations

from envs.batched.kernel import blocks, loading
from envs.batched.kernel import columns as col
from envs.batched.kernel.bundle import Stream, World
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.tables import Tables
from runtime.core import BLOCK_TOKENS, Victim

DRAFTS = int(Victim.DRAFTS)
NOBODY = -1
"""No draft is kept."""


@compiled
def used_bytes(world: World, s: Stream) -> int:
    """Workspace, drafts and KV together."""
    size: int = s.whole[col.DRAFT_BYTES] + s.whole[col.KV_BLOCKS] * world.whole[col.BLOCK_BYTES]
    return size


@compiled
def could_free(world: World, s: Stream, keep: int) -> int:
    """Bytes that would be free if all that may go were dropped."""
    movable = 0
    for draft in range(len(world.spec)):
        if _evictable(world, s, draft, keep):
            movable += world.spec[draft, col.BYTES]
    held = s.whole[col.HELD_BLOCKS] * world.whole[col.BLOCK_BYTES]
    size: int = world.whole[col.BUDGET] - (s.whole[col.DRAFT_BYTES] - movable + held)
    return size


@compiled
def evictable_draft(world: World, s: Stream) -> bool:
    """Whether there is a draft that may be dropped."""
    for draft in range(len(world.spec)):
        if _evictable(world, s, draft, NOBODY):
            return True
    return False


@compiled
def can_prefetch(world: World, s: Stream, draft: int, could_be_free: int) -> bool:
    """Stored, and fitting beside the loads already on their way."""
    size = world.spec[draft, col.BYTES]
    if s.draft_whole[draft, col.RESIDENCY] != col.STORED or world.whole[col.FIXED] + size > world.whole[col.BUDGET]:
        return False
    fits: bool = size <= could_be_free
    return fits


@compiled
def prefetch(world: World, s: Stream, draft: int, victim: int, keep: int) -> None:
    """Reserve room and start a load, unless room cannot be made."""
    size = world.spec[draft, col.BYTES]
    if s.draft_whole[draft, col.RESIDENCY] != col.STORED:
        return
    if not make_room(world, s, size, victim, keep, s.real[col.NOW]):
        return
    s.draft_whole[draft, col.RESIDENCY] = col.LOADING
    s.whole[col.DRAFT_BYTES] += size
    s.whole[col.LOADS] += 1
    loading.start(world, s, draft)


@compiled
def make_room(world: World, s: Stream, needed: int, first: int, keep: int, now_s: float) -> bool:
    """Drop things of class ``first``, then of the other, until ``needed`` bytes are free; nothing if in vain."""
    budget = world.whole[col.BUDGET]
    if needed > budget - used_bytes(world, s) and needed > could_free(world, s, keep):
        return False
    for turn in range(2):
        victim = first if turn == 0 else 1 - first
        while needed > budget - used_bytes(world, s):
            dropped = _drop_draft(world, s, keep, now_s) if victim == DRAFTS else blocks.drop_least(world, s, now_s)
            if not dropped:
                break
            s.whole[col.EVICTIONS] += 1
    if needed > budget - used_bytes(world, s):
        return False
    s.whole[col.PEAK] = max(s.whole[col.PEAK], used_bytes(world, s) + needed)
    return True


@compiled
def touch(world: World, s: Stream, draft: int, now_s: float) -> None:
    """A draft is used in this round."""
    s.draft_real[draft, col.USES] = _recent_uses(world, s, draft, now_s) + 1.0
    s.draft_real[draft, col.LAST_USED] = now_s
    s.draft_whole[draft, col.USED] = 1


@compiled
def retainable(tables: Tables, world: World, s: Stream, tokens: int) -> bool:
    """Whether the KV of so many tokens of the text is not all stored, and could be."""
    above, there = blocks.descend(tables, s, tokens)
    missing = max(there, tokens // BLOCK_TOKENS) - there
    needed = (missing + blocks.unheld_above(s, above)) * world.whole[col.BLOCK_BYTES]
    return missing > 0 and needed <= could_free(world, s, NOBODY)


@compiled
def retain(tables: Tables, world: World, s: Stream, tokens: int, victim: int, now_s: float) -> int:
    """Keep the KV of so many tokens of the text, if room can be made; returns how many are new."""
    above, there = blocks.descend(tables, s, tokens)
    whole = max(there, tokens // BLOCK_TOKENS)
    needed = (whole - there) * world.whole[col.BLOCK_BYTES]
    blocks.hold(s, above, 1)
    fits = whole > there and make_room(world, s, needed, victim, NOBODY, now_s)
    if fits:
        loading.work(world, s, world.cost[col.STORE_S, (whole - there) * BLOCK_TOKENS])
        blocks.use(s, above, 0, now_s)
        node, first = above, tables.text[s.whole[col.TEXT], col.CHAINS_AT]
        for block in range(there, whole):
            node = blocks.add(s, node, tables.chain[first + block], now_s)
    blocks.hold(s, above, -1)
    return (whole - there) * BLOCK_TOKENS if fits else 0


@compiled
def _evictable(world: World, s: Stream, draft: int, keep: int) -> bool:
    resident: bool = s.draft_whole[draft, col.RESIDENCY] == col.RESIDENT
    return draft != keep and world.spec[draft, col.LOADABLE] != 0 and resident


@compiled
def _recent_uses(world: World, s: Stream, draft: int, now_s: float) -> float:
    age = (now_s - s.draft_real[draft, col.LAST_USED]) / world.real[col.HALF_LIFE]
    uses: float = s.draft_real[draft, col.USES] * world.real[col.HALF] ** age
    return uses


@compiled
def _drop_draft(world: World, s: Stream, keep: int, now_s: float) -> bool:
    least, worth = -1, 0.0
    for draft in range(len(world.spec)):
        if _evictable(world, s, draft, keep):
            uses = _recent_uses(world, s, draft, now_s)
            value = world.load[draft, col.LOAD_S] * (0.1 + uses) / world.spec[draft, col.BYTES]
            if least < 0 or value < worth:
                least, worth = draft, value
    if least < 0:
        return False
    if not s.draft_whole[least, col.USED]:
        s.whole[col.WASTED] += 1
    s.draft_whole[least, col.RESIDENCY] = col.STORED
    s.draft_whole[least, col.HELD] = 0
    s.whole[col.DRAFT_BYTES] -= world.spec[least, col.BYTES]
    return True
