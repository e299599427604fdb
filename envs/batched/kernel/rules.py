"""What may be decided, and what becomes of a decision that may not: ``runtime.legality``."""

from __future__ import annotations

from typing import NamedTuple

from envs.batched.kernel import blocks, room
from envs.batched.kernel import columns as col
from envs.batched.kernel.bundle import Stream, World, prompt_tokens
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.tables import Flags, Longs, Tables
from runtime.core import Phase

ADMIT, DECODE, COMPLETE = int(Phase.ADMIT), int(Phase.DECODE), int(Phase.COMPLETE)


class Choice(NamedTuple):
    """A decision that may be: ``runtime.core.Decision``, with -1 for None, and how many parts fell back."""

    draft: int
    gamma: int
    stop: int
    prefetch: int
    kv: int
    victim: int
    illegal: int


@compiled
def may_prefetch(world: World, s: Stream) -> bool:
    """Whether prefetching may be decided now."""
    due: bool = s.whole[col.SINCE] >= world.whole[col.INTERVAL]
    return due and s.whole[col.PHASE] != COMPLETE


@compiled
def fill_mask(tables: Tables, world: World, s: Stream, mask: Flags) -> None:
    """Legal values of every action dimension, flat."""
    drafts, phase = len(tables.spec), s.whole[col.PHASE]
    stop = 1 + drafts * len(tables.gammas)
    prefetch = stop + len(tables.thresholds)
    kv = prefetch + 1 + drafts
    mask[:] = False
    mask[0] = mask[stop] = mask[prefetch] = mask[kv] = mask[kv + 2] = True
    if s.whole[col.REQUEST] >= len(s.plan):
        return
    room_needed = False
    if phase == DECODE:
        mask[stop:prefetch] = True
        _fill_drafts(tables, s, mask)
    if may_prefetch(world, s):
        could_be_free = room.could_free(world, s, room.NOBODY)
        for draft in range(drafts):
            may = room.can_prefetch(world, s, draft, could_be_free)
            mask[prefetch + 1 + draft] = may
            room_needed |= may
    if phase == ADMIT:
        mask[kv + 1] = s.whole[col.MATCH_TOKENS] > 0
    elif phase == COMPLETE:
        stored = prompt_tokens(tables, s) + s.whole[col.GENERATED] - 1
        may = room.retainable(tables, world, s, stored)
        mask[kv + 1] = may
        room_needed |= may
    if room_needed:
        may = blocks.evictable(s)
        mask[kv + 3] = may
        mask[kv + 2] = room.evictable_draft(world, s) or not may


@compiled
def _fill_drafts(tables: Tables, s: Stream, mask: Flags) -> None:
    gammas, left = len(tables.gammas), s.whole[col.MOST] - s.whole[col.GENERATED]
    context = prompt_tokens(tables, s) + s.whole[col.GENERATED]
    for draft in range(len(tables.spec)):
        within = context + tables.gammas[gammas - 1] < tables.spec[draft, col.LIMIT]
        if within and s.draft_whole[draft, col.RESIDENCY] == col.RESIDENT:
            for index in range(gammas):
                mask[1 + draft * gammas + index] = tables.gammas[index] < left


@compiled
def choose(tables: Tables, s: Stream, action: Longs, mask: Flags) -> Choice:
    """What an action means, and its fallback."""
    drafts, gammas, illegal = len(tables.spec), len(tables.gammas), 0
    prefetch_at = 1 + drafts * gammas + len(tables.thresholds)
    draft, gamma = -1, 0
    if action[0] > 0:
        draft, index = (action[0] - 1) // gammas, (action[0] - 1) % gammas
        if mask[1 + draft * gammas]:
            while tables.gammas[index] >= s.whole[col.MOST] - s.whole[col.GENERATED]:
                index, illegal = index - 1, 1
            gamma = tables.gammas[index]
        else:
            draft, illegal = -1, 1
    prefetch, kv, victim = action[2] - 1, action[3], action[4]
    if prefetch >= 0 and not mask[prefetch_at + 1 + prefetch]:
        prefetch, illegal = -1, illegal + 1
    if kv > 0 and not mask[prefetch_at + 1 + drafts + 1]:
        kv, illegal = 0, illegal + 1
    if not mask[prefetch_at + 1 + drafts + 2 + victim]:
        victim = 1 - victim
    return Choice(draft, gamma, action[1], prefetch, kv, victim, illegal)
