"""The mask rule by rule in numpy: what ``runtime.legality``, which is written to be fast, must give."""

from __future__ import annotations

from runtime.control.action import ActionCodec, BoolMask
from runtime.core import GAMMAS, Phase
from runtime.decoding.base import Decoder
from runtime.memory.manager import MemoryManager
from runtime.state import State


def reference_mask(state: State, memory: MemoryManager, decoder: Decoder, codec: ActionCodec) -> BoolMask:
    """Legal values of every action dimension, flat, shape (sum(nvec),); the first of each is always legal."""
    offsets = codec.offsets
    mask = codec.first_values.copy()
    if state.request is None:
        return mask
    room_needed = False
    if state.phase is Phase.DECODE:
        mask[offsets[1] : offsets[2]] = True
        fitting = sum(gamma < state.room for gamma in GAMMAS)
        for i, draft in enumerate(memory.drafts):
            if memory.resident(i) and state.context + GAMMAS[-1] < draft.context_limit:
                first = 1 + i * len(GAMMAS)
                mask[first : first + fitting] = True
    if state.may_prefetch:
        for i in range(len(memory.drafts)):
            mask[offsets[2] + 1 + i] = may = memory.can_prefetch(i)
            room_needed |= may
    if state.phase is Phase.ADMIT:
        mask[offsets[3] + 1] = state.match.tokens > 0
        room_needed |= state.match.disk_tokens > 0
    elif state.phase is Phase.COMPLETE:
        mask[offsets[3] + 1] = may = memory.prefixes.retainable(decoder.stored_tokens()) > 0
        room_needed |= may
    if room_needed:
        mask[offsets[4] + 1] = kv = memory.kv.evictable
        mask[offsets[4]] = memory.evictable_draft(None) or not kv
    return mask
