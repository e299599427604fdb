"""What may be decided now, and what becomes of a decision that may not: it falls back, and never to a stall."""

from __future__ import annotations

import numpy as np

from runtime.control.action import ActionCodec, BoolMask
from runtime.control.rules import longest_gamma
from runtime.core import GAMMAS, STOP_LEVELS, Decision, Phase, Victim
from runtime.decoding.base import Decoder
from runtime.memory.manager import MemoryManager, Residency
from runtime.state import State

_ADMIT, _DECODE, _COMPLETE = Phase
_STORED, _RESIDENT = Residency.STORED, Residency.RESIDENT
_LONGEST = GAMMAS[-1]
_NO, _YES = b"\0", b"\1"
_FIRST = _YES + _NO
_STOPS, _FIRST_STOP = _YES * len(STOP_LEVELS), _YES + _NO * (len(STOP_LEVELS) - 1)
_FITTING = tuple(bytes(gamma < room for gamma in GAMMAS) for room in range(_LONGEST + 2))
"""By the room left: the lengths of a draft that leave one token for the target's own."""
_NONE = _FITTING[0]


def legal_mask(state: State, memory: MemoryManager, decoder: Decoder, codec: ActionCodec) -> BoolMask:
    """Legal values of every action dimension, flat, shape (sum(nvec),); the first of each is always legal.

    It is put together from bytes: this is part of every decision, and numpy is long in starting.
    """
    lengths = stop = fetched = kv = b""
    room_needed = False
    if state.request is not None:
        phase = state.phase
        if phase is _DECODE:
            lengths, stop = _lengths(state, memory), _STOPS
        if state.may_prefetch:
            fetched = _fetchable(memory)
            room_needed = 1 in fetched
        if phase is _ADMIT:
            kv = _YES if state.match.tokens > 0 else _NO
            room_needed |= state.match.disk_tokens > 0
        elif phase is _COMPLETE and memory.prefixes.retainable(decoder.stored_tokens()) > 0:
            kv, room_needed = _YES, True
    victims = _victims(memory) if room_needed else _FIRST
    n = codec.n_drafts
    lengths, stop, fetched, kv = lengths or _NONE * n, stop or _FIRST_STOP, fetched or _NO * n, kv or _NO
    legal = (_YES, lengths, stop, _YES, fetched, _YES, kv, victims)
    return np.frombuffer(bytearray(b"".join(legal)), dtype=np.bool_)


def _lengths(state: State, memory: MemoryManager) -> bytes:
    """Of every draft the lengths that fit: those of a draft in memory that can read as far."""
    fitting, context = _FITTING[min(state.room, _LONGEST + 1)], state.context + _LONGEST
    return b"".join(
        [
            fitting if held.residency is _RESIDENT and context < draft.context_limit else _NONE
            for held, draft in zip(memory.states, memory.drafts, strict=True)
        ]
    )


def _fetchable(memory: MemoryManager) -> bytes:
    """Which drafts may be loaded in the background, as ``MemoryManager.can_prefetch``."""
    stored = [held.residency is _STORED and held.failed is None for held in memory.states]
    most = memory.could_free() if True in stored else 0  # never more than could ever be free
    return bytes([may and draft.bytes <= most for may, draft in zip(stored, memory.drafts, strict=True)])


def _victims(memory: MemoryManager) -> bytes:
    kv = memory.kv.evictable
    return bytes((memory.evictable_draft(None) or not kv, kv))


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
