"""What may be decided now, and what becomes of a decision that may not: it falls back, and never to a stall."""

from __future__ import annotations

from runtime.control.action import ActionCodec, BoolMask
from runtime.control.rules import longest_gamma
from runtime.core import GAMMAS, Decision, Phase, Victim
from runtime.decoding.base import Decoder
from runtime.memory.manager import MemoryManager
from runtime.state import State


def legal_mask(state: State, memory: MemoryManager, decoder: Decoder, codec: ActionCodec) -> BoolMask:
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


def sanitised(decision: Decision, mask: BoolMask, state: State, codec: ActionCodec) -> tuple[Decision, int]:
    """The decision as it may be, and how many of its parts were not legal.

    An illegal draft becomes plain decoding; too long a gamma the longest legal one; all else nothing. A class of
    victims with nothing in it becomes the other one, which is not counted. The mask knows ``GAMMAS`` only; a length
    between them, which only baselines name, is legal if it is below the room left, and is cut to what is.
    """
    offsets, illegal = codec.offsets, 0
    if decision.draft is not None:
        decision, illegal = _with_legal_draft(decision, decision.draft, mask, state)
    if decision.prefetch is not None and not mask[offsets[2] + 1 + decision.prefetch]:
        decision, illegal = decision._replace(prefetch=None), illegal + 1
    if decision.kv and not mask[offsets[3] + 1]:
        decision, illegal = decision._replace(kv=False), illegal + 1
    if not mask[offsets[4] + int(decision.victim)]:
        decision = decision._replace(victim=Victim(1 - decision.victim))
    return decision, illegal


def _with_legal_draft(decision: Decision, draft: int, mask: BoolMask, state: State) -> tuple[Decision, int]:
    first = 1 + draft * len(GAMMAS)
    if mask[first]:
        longest = longest_gamma(decision.gamma, state.room)
        return (decision._replace(gamma=longest), 1) if decision.gamma > longest else (decision, 0)
    if decision.wait and state.phase is Phase.DECODE and state.room > 1:
        return decision._replace(gamma=min(decision.gamma, longest_gamma(decision.gamma, state.room))), 0
    return decision._replace(draft=None, gamma=0), 1
