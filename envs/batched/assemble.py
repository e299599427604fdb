"""From worlds to the tables and empty arrays of their streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.batched.costs import WIDEST, fixed_bytes, world_tables
from envs.batched.kernel import columns as col
from envs.batched.kernel.tables import GRAM_STRIDE, Seen, Streams, Tables
from envs.batched.texts import text_tables
from envs.world import ReplayWorld
from runtime.control.action import ActionCodec
from runtime.core import BLOCK_TOKENS, GAMMAS, STOP_LEVELS, StopRule
from runtime.decoding.drafters.lookup import CONFIDENCE, MEMORY_TOKENS
from runtime.decoding.stop_rule import guess_score
from runtime.errors import UserError
from runtime.state import EVIDENCE_DECAY, HIT_DECAY, HIT_START


def build_tables(worlds: Sequence[ReplayWorld]) -> Tables:
    """Everything that streams of these worlds share.

    Raises:
        UserError: If the worlds cannot be stepped together, or ask for what is not compiled.
    """
    refuse_unsupported(worlds)
    first = worlds[0]
    texts = text_tables(first.bank, first.generator.traces, first.topic, first.traces.eos_ids)
    sizes = texts["text"][:, col.PROMPT] + texts["text"][:, col.LENGTH]
    memory = MEMORY_TOKENS // 2
    longest = int(sizes.max())
    if longest >= min(memory, GRAM_STRIDE) - 1:
        raise UserError(
            f"a batched replay holds texts of up to {min(memory, GRAM_STRIDE) - 2} tokens, got one of {longest}: use "
            "single environments (env.batched=false)"
        )
    chances = [[guess_score(StopRule.REACH, raw, d.calibration) for raw in CONFIDENCE] for d in first.drafts]
    return Tables(
        **world_tables(worlds, longest),
        **texts,
        gammas=np.array(GAMMAS, dtype=np.int64),
        thresholds=np.array(STOP_LEVELS),
        rates=np.array([HIT_START, HIT_DECAY]),
        decay=np.array([EVIDENCE_DECAY**positions for positions in range(longest + WIDEST + 1)]),
        chance=np.array(chances),
        memory=np.array([memory], dtype=np.int64),
    )


def empty_streams(tables: Tables, worlds: Sequence[ReplayWorld], count: int) -> Streams:
    """Arrays for ``count`` streams; each has to be reset before it is stepped."""
    drafts, requests, slots = len(tables.spec), worlds[0].workload.requests, _slots(tables, worlds) + 1
    return Streams(
        whole=np.zeros((count, col.WHOLE), dtype=np.int64),
        real=np.zeros((count, col.REAL)),
        draft_whole=np.zeros((count, drafts, col.DRAFT_WHOLE), dtype=np.int64),
        draft_real=np.zeros((count, drafts, col.DRAFT_REAL)),
        evidence=np.zeros((count, drafts, col.EVIDENCE), dtype=np.float32),
        plan=np.zeros((count, requests, col.PLAN), dtype=np.int64),
        first_token_s=np.zeros((count, requests)),
        node=np.zeros((count, slots, col.NODE), dtype=np.int32),
        node_used_s=np.zeros((count, slots)),
    )


def empty_seen(tables: Tables, count: int) -> Seen:
    """Arrays for what ``count`` streams show."""
    choices = sum(ActionCodec(len(tables.spec)).nvec)
    return Seen(
        vector=np.zeros((count, len(tables.low)), dtype=np.float32),
        mask=np.zeros((count, choices), dtype=np.bool_),
        reward=np.zeros(count),
        illegal=np.zeros(count, dtype=np.int64),
        ended=np.zeros(count, dtype=np.int64),
    )


def refuse_unsupported(worlds: Sequence[ReplayWorld]) -> None:
    """Refuse what compiled streams cannot do.

    Raises:
        UserError: Saying what, and what to do.
    """
    if not worlds:
        raise UserError("a batched replay needs at least one world, got none")
    first = worlds[0]
    for world in worlds:
        if world.config.memory.disk_bytes:
            raise UserError(
                f"a batched replay keeps no stored KV on disk, got a disk limit of {world.config.memory.disk_bytes} "
                "bytes: set env.disk_kv_tokens=0, or use single environments (env.batched=false)"
            )
        if world.config.memory.kv_bytes_per_token < 1:
            raise UserError("a batched replay needs kv_bytes_per_token of at least 1, got 0: measure a profile again")
        same = (
            world.traces is first.traces
            and world.drafts == first.drafts
            and world.topic is first.topic
            and (world.workload, world.split) == (first.workload, first.split)
        )
        if not same:
            raise UserError(
                "worlds that are stepped together share traces, drafts, topic predictor, workload and split, and "
                "differ in costs and budget: use single environments (env.batched=false) for others"
            )


def _slots(tables: Tables, worlds: Sequence[ReplayWorld]) -> int:
    """Most blocks of KV that a stream can hold: what fits beside the drafts that always stay, if there are so many."""
    fitting = 1
    for world in worlds:
        memory = world.config.memory
        room = memory.budget_bytes - fixed_bytes(world)
        fitting = max(fitting, room // (memory.kv_bytes_per_token * BLOCK_TOKENS))
    return int(min(fitting, max(1, len(tables.chain_at))))
