"""Worlds as arrays: what work costs by a number of tokens, asked of the very cost models that the sessions ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.batched.kernel import columns as col
from envs.batched.kernel.tables import Doubles, Longs, Singles
from envs.world import ReplayWorld
from runtime.control.observation import bounds
from runtime.core import BLOCK_TOKENS, GAMMAS
from runtime.memory.prefixes import USE_HALF_LIFE_S
from runtime.observer import Observer

WIDEST = 1 + GAMMAS[-1]
"""Tokens of the widest verify forward, and most tokens that a round commits."""


def world_tables(worlds: Sequence[ReplayWorld], longest: int) -> dict[str, Any]:
    """The fields of ``Tables`` that depend on worlds.

    Args:
        worlds: Of the same drafts and texts.
        longest: Most tokens of a prompt with its output.
    """
    first = worlds[0]
    low, high = bounds(len(first.drafts))
    return {
        "world_whole": np.array([_whole(world) for world in worlds], dtype=np.int64),
        "world_real": np.array([_real(world) for world in worlds]),
        "spec": np.array([(d.bytes, d.loadable, d.context_limit) for d in first.drafts], dtype=np.int64),
        "load": np.array([_loads(world) for world in worlds]),
        "cost": np.stack([_costs(world, longest + WIDEST + 1) for world in worlds]),
        "still": np.stack([_still(world) for world in worlds]),
        "low": low,
        "high": high,
        "expected": np.array([draft.expected for draft in first.drafts], dtype=np.float32),
    }


def fixed_bytes(world: ReplayWorld) -> int:
    """What always lies in memory: the workspace and drafts without weights."""
    return world.config.memory.workspace_bytes + sum(draft.bytes for draft in world.drafts if not draft.loadable)


def _whole(world: ReplayWorld) -> Longs:
    row = np.zeros(col.WORLD_WHOLE, dtype=np.int64)
    memory = world.config.memory
    row[col.BUDGET], row[col.FIXED] = memory.budget_bytes, fixed_bytes(world)
    row[col.BLOCK_BYTES] = memory.kv_bytes_per_token * BLOCK_TOKENS
    row[col.TOKEN_BYTES] = memory.kv_bytes_per_token
    row[col.INTERVAL], row[col.MAX_STEPS] = world.config.decision_interval, world.config.max_steps
    return row


def _real(world: ReplayWorld) -> Doubles:
    row = np.zeros(col.WORLD_REAL)
    profile = world.costs.profile
    row[col.PLAIN_S] = world.costs.plain_s(profile.reference_context)
    row[col.DECODE_SLOWDOWN] = max(1.0, profile.decode_slowdown)
    row[col.LOAD_SLOWDOWN] = max(1.0, profile.load_slowdown)
    row[col.HALF_LIFE], row[col.HALF] = USE_HALF_LIFE_S, 0.5
    return row


def _loads(world: ReplayWorld) -> list[tuple[float, float]]:
    ratios = world.costs.load_ratios.tolist()
    return [(world.costs.load_s(i), ratio) for i, ratio in enumerate(ratios)]


def _costs(world: ReplayWorld, size: int) -> Doubles:
    costs, rounds = world.costs, world.bank.costs
    drafts, plain_s = range(len(world.drafts)), costs.plain_s(costs.profile.reference_context)
    table = np.zeros((col.COST_ROWS + 2 * len(world.drafts), size))
    for x in range(size):
        table[col.PREFILL_S, x] = costs.prefill_s(x, 0)
        table[col.RESTORE_S, x] = costs.kv_restore_s(x) if x else 0.0
        table[col.STORE_S, x] = costs.kv_store_s(x)
        table[col.BACK_S, x] = costs.prefill_s(BLOCK_TOKENS, x * BLOCK_TOKENS)
        table[col.AGAIN, x] = costs.prefill_s(x, 0) / plain_s
        for n in range(1, WIDEST + 1):
            table[col.ROUND_S + n - 1, x] = rounds.round_s(n, x)
            table[col.PLAIN_SUM + n - 1, x] = sum(costs.plain_s(x + i) for i in range(n))  # as the session adds
        for draft in drafts:
            table[col.DRAFT_S + draft, x] = rounds.draft_s(draft, x)
            if world.drafts[draft].loadable:
                extra_s = costs.draft_s(draft, x + 1) - costs.draft_s(draft, 1)
                table[col.DRAFT_S + len(world.drafts) + draft, x] = extra_s / plain_s
    return table


def _still(world: ReplayWorld) -> Singles:
    """The part of an observation that the observer fills in ahead."""
    session = world.session()
    return Observer(session.memory, session.decoder, world.costs, world.topic).static_vector()
