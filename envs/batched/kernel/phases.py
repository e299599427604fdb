"""The three phases of a request, and its coming: ``runtime.session.DecodeSession`` over ``ReplayDecoder``.

Every phase returns what plain decoding would need for the same tokens, in seconds.
"""

from __future__ import annotations

import numpy as np

from envs.batched.kernel import blocks, loading, lookup, room
from envs.batched.kernel import columns as col
from envs.batched.kernel.bundle import Stream, World
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.rules import ADMIT, COMPLETE, DECODE, Choice, may_prefetch
from envs.batched.kernel.tables import Tables


@compiled
def begin(tables: Tables, world: World, s: Stream) -> None:
    """A fresh session whose first request has arrived. ``WORLD`` and ``plan`` are set."""
    which = s.whole[col.WORLD]
    s.whole[:], s.real[:], s.first_token_s[:] = 0, 0.0, 0.0
    s.draft_whole[:], s.draft_real[:], s.evidence[:] = 0, 0.0, np.float32(0.0)
    for draft in range(len(tables.spec)):
        stored = tables.spec[draft, col.LOADABLE] != 0
        s.draft_whole[draft, col.RESIDENCY] = col.STORED if stored else col.RESIDENT
        s.draft_whole[draft, col.USED] = 1
        s.evidence[draft, col.ACCEPTANCE] = s.evidence[draft, col.CONFIDENCE] = tables.expected[draft]
    root = len(s.node) - 1
    s.node[:], s.node_used_s[:] = 0, 0.0
    for slot in range(root):
        s.node[slot, col.NEXT] = slot + 1 if slot + 1 < root else -1
    s.node[root, col.FIRST_CHILD] = s.node[root, col.LAST_CHILD] = s.node[root, col.DEPTH] = -1
    s.whole[col.WORLD], s.whole[col.REQUEST], s.whole[col.YOUNG_TOKENS] = which, -1, 1
    s.whole[col.DRAFT_BYTES] = s.whole[col.PEAK] = world.whole[col.FIXED]
    s.real[col.HIT_SHARE] = tables.rates[0]
    arrive(tables, world, s)


@compiled
def arrive(tables: Tables, world: World, s: Stream) -> bool:
    """The next request is in hand; False if there is none."""
    s.whole[col.REQUEST] += 1
    request = s.whole[col.REQUEST]
    if request >= len(s.plan):
        return False
    s.whole[col.PHASE], s.whole[col.TEXT] = ADMIT, s.plan[request, col.PLAN_TEXT]
    s.whole[col.MOST], s.whole[col.END] = s.plan[request, col.PLAN_MOST], s.plan[request, col.PLAN_END]
    s.whole[col.GENERATED], s.whole[col.LAST_DRAFTED], s.whole[col.LAST_ACCEPTED] = 0, 0, 0
    s.whole[col.SINCE] = world.whole[col.INTERVAL]
    blocks.match(tables, s)
    if s.whole[col.MATCH_NODE] >= 0:
        blocks.hold(s, s.whole[col.MATCH_NODE], 1)
    share, keeps = s.whole[col.MATCH_TOKENS] / tables.text[s.whole[col.TEXT], col.PROMPT], tables.rates[1]
    s.real[col.HIT_SHARE] = keeps * s.real[col.HIT_SHARE] + (1.0 - keeps) * share
    return True


@compiled
def admit(tables: Tables, world: World, s: Stream, choice: Choice) -> float:
    """Reuse or not, then prefill."""
    started_s, prompt = s.real[col.NOW], tables.text[s.whole[col.TEXT], col.PROMPT]
    reused, node = s.whole[col.MATCH_TOKENS] if choice.kv else 0, s.whole[col.MATCH_NODE]
    if reused > 0:
        blocks.use(s, node, 1, started_s)
    _prefetch(world, s, choice, room.NOBODY)
    lookup.begin(tables, s)
    s.draft_whole[:, col.HELD] = 0
    cost_s = world.cost[col.PREFILL_S, prompt]
    if reused > 0:
        behind_s = world.cost[col.PREFILL_S, prompt] - world.cost[col.PREFILL_S, reused]
        cost_s = world.cost[col.RESTORE_S, reused] + max(behind_s, world.cost[col.PREFILL_S, prompt - reused])
    loading.work(world, s, cost_s)
    if node >= 0:
        blocks.hold(s, node, -1)
    s.whole[col.GENERATED] = 1
    _note_end(s)
    seconds, whole_s = s.real[col.NOW] - started_s, world.cost[col.PREFILL_S, prompt]
    s.first_token_s[s.whole[col.REQUEST]] = seconds
    s.real[col.SAVED] = whole_s - seconds if reused > 0 else 0.0
    s.whole[col.ADMITTED] += 1
    s.whole[col.COMMITTED] += 1
    s.whole[col.KV_HIT] += reused
    s.whole[col.PREFILL] += prompt - reused
    plain_s: float = whole_s
    return plain_s


@compiled
def decode(tables: Tables, world: World, s: Stream, choice: Choice) -> float:
    """One round."""
    whole, draft, started_s = s.whole, choice.draft, s.real[col.NOW]
    _prefetch(world, s, choice, draft)
    at, prompt = whole[col.GENERATED], tables.text[whole[col.TEXT], col.PROMPT]
    drafted, accepted, matches, positions, cost_s = 0, 0, 0, 0, 0.0
    if draft >= 0:
        room.touch(world, s, draft, started_s)
        if tables.spec[draft, col.LOADABLE] != 0:
            drafted, accepted, matches, positions, cost_s = _guess(tables, world, s, choice)
        else:
            drafted, accepted = lookup.propose(tables, s, draft, choice.gamma, tables.thresholds[choice.stop])
            cost_s = world.cost[col.DRAFT_S + draft, 1]
    committed = min(at + accepted + 1, whole[col.END]) - at
    loading.work(world, s, cost_s + world.cost[col.ROUND_S + drafted, prompt + at - 1])
    whole[col.GENERATED] = at + committed
    whole[col.LAST_DRAFTED], whole[col.LAST_ACCEPTED] = drafted, accepted
    _note_end(s)
    if draft >= 0:
        rejected = 1 if drafted > accepted and committed > accepted else 0
        _note_evidence(tables, s, choice, accepted + matches, accepted + rejected + positions, at)
    whole[col.ROUNDS] += 1
    whole[col.DRAFTED] += drafted
    whole[col.ACCEPTED] += accepted
    whole[col.CORRECTIONS] += committed - accepted
    whole[col.COMMITTED] += committed
    whole[col.YOUNG_TOKENS] += committed
    plain_s: float = world.cost[col.PLAIN_SUM + committed - 1, prompt + at]
    return plain_s


@compiled
def complete(tables: Tables, world: World, s: Stream, choice: Choice) -> float:
    """Keep the KV or not. Whoever calls lets the next request arrive."""
    if choice.kv:
        stored = tables.text[s.whole[col.TEXT], col.PROMPT] + s.whole[col.GENERATED] - 1
        kept = room.retain(tables, world, s, stored, choice.victim, s.real[col.NOW])
        s.whole[col.KV_RETAINED] += kept * world.whole[col.TOKEN_BYTES]
    s.real[col.KV_SAVED] += s.real[col.SAVED]
    return 0.0


@compiled
def _prefetch(world: World, s: Stream, choice: Choice, keep: int) -> None:
    if may_prefetch(world, s):
        s.whole[col.SINCE] = 0
    if s.whole[col.PHASE] == DECODE:
        s.whole[col.SINCE] += 1
    if choice.prefetch >= 0:
        room.prefetch(world, s, choice.prefetch, choice.victim, keep)


@compiled
def _note_end(s: Stream) -> None:
    s.whole[col.PHASE] = COMPLETE if s.whole[col.GENERATED] >= s.whole[col.END] else DECODE


@compiled
def _guess(tables: Tables, world: World, s: Stream, choice: Choice) -> tuple[int, int, int, int, float]:
    """Guesses made and right, free evidence as matches and positions, and what guessing takes."""
    draft, at, prompt = choice.draft, s.whole[col.GENERATED], tables.text[s.whole[col.TEXT], col.PROMPT]
    first = tables.text[s.whole[col.TEXT], col.PLACES_AT]
    guess, context, held = tables.guess[draft, first + at], prompt + at, int(s.draft_whole[draft, col.HELD])
    sent = min(choice.gamma, int(guess[col.SENT + choice.stop]))
    accepted = min(sent, int(guess[col.RUN]))
    s.draft_whole[draft, col.HELD] = context + min(accepted, sent - 1)
    since, matches, positions = max(0, held + 1 - prompt), 0, 0
    if since < at:
        matches = int(tables.right[draft, first + at]) - int(tables.right[draft, first + since])
        positions = at - since
    seconds = world.cost[col.DRAFT_S + draft, context - held]
    if sent > 1:
        seconds += (sent - 1) * world.cost[col.DRAFT_S + draft, 1]
    return sent, accepted, matches, positions, seconds


@compiled
def _note_evidence(tables: Tables, s: Stream, choice: Choice, matches: int, positions: int, at: int) -> None:
    """``runtime.state.Evidence.note``; ``at`` is the place of the first guess."""
    row = s.evidence[choice.draft]
    if positions > 0:
        kept = tables.decay[positions]
        row[col.ACCEPTANCE] = row[col.ACCEPTANCE] * np.float32(kept) + np.float32((1.0 - kept) * matches / positions)
        row[col.SEEN_AT] = s.whole[col.COMMITTED]
    if tables.spec[choice.draft, col.LOADABLE] != 0:
        row[col.CONFIDENCE] = tables.sure[choice.draft, tables.text[s.whole[col.TEXT], col.PLACES_AT] + at]
    elif s.whole[col.FOUND_REQUEST] >= 0:
        row[col.CONFIDENCE] = np.float32(tables.chance[choice.draft, s.whole[col.FOUND_LENGTH]])
