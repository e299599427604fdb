"""The observation vector: ``runtime.observer.Observer``."""

from __future__ import annotations

from envs.batched.kernel import columns as col
from envs.batched.kernel import loading, lookup, room
from envs.batched.kernel.bundle import Stream, World, prompt_tokens
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.rules import ADMIT, DECODE, may_prefetch
from envs.batched.kernel.tables import Singles, Tables
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, P

PROMPT_TOKENS, USABLE, SHARE = (GLOBAL_INDEX[f"{n}"] for n in ("prompt_tokens", "usable_prefix_tokens", "usable_share"))
CONTEXT, WRITTEN, ROOM = (GLOBAL_INDEX[f"{n}_tokens"] for n in ("context", "generated", "room"))
DRAFTED, ACCEPTED = (GLOBAL_INDEX[f"last_{n}"] for n in ("drafted", "accepted"))
FREE, KV, RETAIN, HIT = (GLOBAL_INDEX[f"{n}_share"] for n in ("free", "kv", "retain", "hit"))
SINCE, MAY, LOADS = (GLOBAL_INDEX[n] for n in ("rounds_since_decision", "may_prefetch", "loads_in_flight"))
AGAIN = GLOBAL_INDEX["again_cost"]
RESIDENT, FRACTION, LOAD_LEFT = (DRAFT_INDEX[n] for n in ("resident", "loading_fraction", "load_left"))
ACCEPTANCE, STALENESS, BEHIND = (DRAFT_INDEX[n] for n in ("acceptance", "staleness", "catch_up_tokens"))
BEHIND_COST, PREDICTED, SHIFT = (DRAFT_INDEX[n] for n in ("catch_up_cost", "predicted", "next_shift"))
CONFIDENCE = DRAFT_INDEX["confidence"]


@compiled
def fill_vector(tables: Tables, world: World, s: Stream, vector: Singles) -> None:
    """All features, clipped to their ranges."""
    for index in range(len(vector)):
        vector[index] = tables.still[s.whole[col.WORLD], index]
    vector[s.whole[col.PHASE]] = 1.0
    _fill_global(tables, world, s, vector)
    _fill_shares(tables, world, s, vector)
    if s.whole[col.PHASE] == DECODE:
        _look_up(tables, s)
    for draft in range(len(tables.spec)):
        _fill_draft(tables, world, s, draft, vector[G + draft * P : G + (draft + 1) * P])
    for index in range(len(vector)):
        vector[index] = min(max(vector[index], tables.low[index]), tables.high[index])


@compiled
def _fill_global(tables: Tables, world: World, s: Stream, vector: Singles) -> None:
    whole, prompt = s.whole, prompt_tokens(tables, s)
    admitting, asked = whole[col.PHASE] == ADMIT, whole[col.REQUEST] < len(s.plan)
    usable = whole[col.MATCH_TOKENS] if admitting else 0
    context = prompt + whole[col.GENERATED]
    vector[PROMPT_TOKENS] = prompt
    vector[USABLE] = usable
    vector[SHARE] = usable / max(prompt, 1)
    vector[CONTEXT] = context
    vector[WRITTEN] = whole[col.GENERATED]
    vector[ROOM] = whole[col.MOST] - whole[col.GENERATED] if asked else 0
    vector[DRAFTED] = whole[col.LAST_DRAFTED]
    vector[ACCEPTED] = whole[col.LAST_ACCEPTED]
    vector[SINCE] = whole[col.SINCE]
    vector[MAY] = may_prefetch(world, s)
    vector[HIT] = s.real[col.HIT_SHARE]
    if asked and (usable > 0 or not admitting):
        vector[AGAIN] = world.cost[col.AGAIN, usable if admitting else context]


@compiled
def _fill_shares(tables: Tables, world: World, s: Stream, vector: Singles) -> None:
    budget = max(1, world.whole[col.BUDGET])
    context = prompt_tokens(tables, s) + s.whole[col.GENERATED]
    vector[FREE] = (budget - room.used_bytes(world, s)) / budget
    vector[KV] = s.whole[col.KV_BLOCKS] * world.whole[col.BLOCK_BYTES] / budget
    vector[RETAIN] = context * world.whole[col.TOKEN_BYTES] / budget
    loads = 0
    for draft in range(len(tables.spec)):
        if s.draft_whole[draft, col.RESIDENCY] == col.LOADING:
            loads += 1
    vector[LOADS] = loads


@compiled
def _look_up(tables: Tables, s: Stream) -> None:
    """What drafts without weights would say next."""
    sought = False
    for draft in range(len(tables.spec)):
        if tables.spec[draft, col.LOADABLE] == 0:
            if not sought:
                lookup.find(tables, s)
                sought = True
            found = s.whole[col.FOUND_REQUEST] >= 0
            chance = tables.chance[draft, s.whole[col.FOUND_LENGTH]] if found else 0.0
            s.evidence[draft, col.CONFIDENCE] = chance


@compiled
def _fill_draft(tables: Tables, world: World, s: Stream, draft: int, row: Singles) -> None:
    phase, generated, text = s.whole[col.PHASE], s.whole[col.GENERATED], s.whole[col.TEXT]
    row[RESIDENT] = s.draft_whole[draft, col.RESIDENCY] == col.RESIDENT
    if s.draft_whole[draft, col.RESIDENCY] != col.RESIDENT:
        loading_now = s.draft_whole[draft, col.RESIDENCY] == col.LOADING
        done = loading.fraction(world, s, draft) if loading_now else 0.0
        row[FRACTION] = done
        row[LOAD_LEFT] = world.load[draft, col.LOAD_RATIO] * (1.0 - done)
    row[ACCEPTANCE] = s.evidence[draft, col.ACCEPTANCE]
    row[CONFIDENCE] = s.evidence[draft, col.CONFIDENCE]
    row[STALENESS] = s.whole[col.COMMITTED] - s.evidence[draft, col.SEEN_AT]
    if s.whole[col.REQUEST] < len(s.plan) and tables.spec[draft, col.LOADABLE] != 0:
        prompt = tables.text[text, col.PROMPT]
        behind = max(0, prompt + generated - s.draft_whole[draft, col.HELD] - 1) if phase == DECODE else prompt
        row[BEHIND] = behind
        row[BEHIND_COST] = world.cost[col.DRAFT_S + len(tables.spec) + draft, behind]
    if phase == ADMIT:
        row[PREDICTED] = tables.opening[text, draft]
        return
    place = tables.text[text, col.PLACES_AT] + generated - 1
    row[PREDICTED] = tables.outlook[place, 0, draft]
    if phase == DECODE:
        row[SHIFT] = tables.outlook[place, 1, draft]
