"""What compiled functions are handed: one stream's rows, and its world's."""

from __future__ import annotations

from typing import NamedTuple

from envs.batched.kernel import columns as col
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.tables import Doubles, Flags, Ints, Longs, Seen, Singles, Streams, Tables


class World(NamedTuple):
    """One world: rows of the fields of ``Tables`` of the same names."""

    whole: Longs
    real: Doubles
    spec: Longs
    load: Doubles
    cost: Doubles


class Stream(NamedTuple):
    """One stream: rows of the fields of ``Streams`` of the same names."""

    whole: Longs
    real: Doubles
    draft_whole: Longs
    draft_real: Doubles
    evidence: Singles
    plan: Longs
    first_token_s: Doubles
    node: Ints
    node_used_s: Doubles


class View(NamedTuple):
    """One stream's rows of the fields of ``Seen``."""

    vector: Singles
    mask: Flags


@compiled
def world_of(tables: Tables, index: int) -> World:
    """One world's rows."""
    return World(
        tables.world_whole[index], tables.world_real[index], tables.spec, tables.load[index], tables.cost[index]
    )


@compiled
def stream_of(streams: Streams, index: int) -> Stream:
    """One stream's rows."""
    return Stream(
        streams.whole[index],
        streams.real[index],
        streams.draft_whole[index],
        streams.draft_real[index],
        streams.evidence[index],
        streams.plan[index],
        streams.first_token_s[index],
        streams.node[index],
        streams.node_used_s[index],
    )


@compiled
def view_of(seen: Seen, index: int) -> View:
    """One stream's rows."""
    return View(seen.vector[index], seen.mask[index])


@compiled
def prompt_tokens(tables: Tables, s: Stream) -> int:
    """Tokens of the prompt in hand; 0 without a request."""
    if s.whole[col.REQUEST] >= len(s.plan):
        return 0
    tokens: int = tables.text[s.whole[col.TEXT], col.PROMPT]
    return tokens
