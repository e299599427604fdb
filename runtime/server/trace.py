"""What the page and curious clients see: where tokens came from, what was decided, what is in memory.

Sizes and names only. Nothing here says what other clients asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runtime.core import BLOCK_TOKENS, Decision, Outcome, Phase
from runtime.memory.kv_tree import Node, Tier
from runtime.session import DecodeSession

MOST_KV_ENTRIES = 12
"""Stored texts that are listed one by one, the latest used first."""


def origins(outcome: Outcome) -> Iterator[str]:
    """Where every committed token of a step came from, in order.

    ``prefill``: the first token; ``plain``: a round without guesses; ``accepted``: a guess; ``corrected``: the target's
    own in place of a rejected guess; ``bonus``: the target's own behind guesses that were all right.
    """
    done = outcome.round
    if done is None:
        yield from ("prefill" for _ in outcome.tokens)
        return
    own = "plain" if not done.drafted else "bonus" if done.accepted == done.drafted else "corrected"
    for index in range(len(outcome.tokens)):
        yield "accepted" if index < done.accepted else own


def step(outcome: Outcome, texts: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """A step as JSON.

    Args:
        outcome: The step.
        texts: For every committed token the text that became certain with it, maybe none.
        names: Drafts by index.
    """
    draft = outcome.decision.draft
    return {
        "tokens": [
            {
                "text": text,
                "origin": origin,
                "draft": names[draft] if draft is not None and origin in ("accepted", "corrected", "bonus") else None,
            }
            for text, origin in zip(texts, origins(outcome), strict=True)
        ],
        "decision": decided(outcome.phase, outcome.decision, names),
        "drafted": outcome.round.drafted if outcome.round else 0,
        "accepted": outcome.round.accepted if outcome.round else 0,
        "seconds": round(outcome.seconds, 6),
        "plain_seconds": round(outcome.plain_seconds, 6),
    }


def decided(phase: Phase, decision: Decision, names: Sequence[str]) -> dict[str, Any]:
    """A decision as JSON."""
    return {
        "phase": phase.name.lower(),
        "draft": None if decision.draft is None else names[decision.draft],
        "gamma": decision.gamma,
        "stop": decision.stop,
        "prefetch": None if decision.prefetch is None else names[decision.prefetch],
        "kv": decision.kv,
        "victim": decision.victim.name.lower(),
    }


def memory_state(session: DecodeSession) -> dict[str, Any]:
    """What is in memory, as JSON; only the thread that owns the session may ask. Sizes in bytes."""
    memory = session.memory
    return {
        "budget_bytes": memory.config.budget_bytes,
        "aside_bytes": memory.aside_bytes,
        "used_bytes": memory.used_bytes,
        "workspace_bytes": memory.config.workspace_bytes,
        "kv_bytes": memory.kv.bytes,
        "kv_disk_bytes": memory.kv.disk_bytes,
        "drafts": [
            {
                "name": draft.name,
                "bytes": draft.bytes,
                "state": _draft_state(session, index),
                "fraction": round(memory.loader.fraction(index), 3) if memory.loading(index) else 0.0,
            }
            for index, draft in enumerate(memory.drafts)
        ],
        "kv": _kv_entries(session),
    }


def _draft_state(session: DecodeSession, draft: int) -> str:
    state = session.memory.states[draft]
    return "failed" if state.failed is not None else state.residency.name.lower()


def _kv_entries(session: DecodeSession) -> list[dict[str, int]]:
    """Stored texts, each from its start to its last block: tokens in every tier. They may share blocks."""
    ends = [node for node in session.memory.kv.tree.nodes() if not node.children]
    ends.sort(key=lambda node: node.last_used_s, reverse=True)
    return [_kv_entry(node) for node in ends[:MOST_KV_ENTRIES]]


def _kv_entry(end: Node) -> dict[str, int]:
    tiers = [node.tier for node in end.up()]
    count = {tier: tiers.count(tier) * BLOCK_TOKENS for tier in Tier}
    return {"memory": count[Tier.MEMORY], "loading": count[Tier.LOADING], "disk": count[Tier.DISK]}
