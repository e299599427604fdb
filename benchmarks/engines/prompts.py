"""Held-out prompts of all domains and kinds, no two of one document or conversation.

So no prompt begins with another one's text, and what a side keeps of one prompt (stored KV, say) can help with another
only by what all have in common: the opening of the chat template.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from envs.traces import Trace, TraceSet
from runtime.errors import UserError

KINDS = ("single", "rag", "single", "chat")
"""Kinds in turn: short questions, a question behind a document, a conversation of several turns."""


class Prompt(NamedTuple):
    """One prompt. ``turn`` counts from 0; a chat's prompt holds all turns before it."""

    prompt_id: str
    domain: str
    kind: str
    turn: int
    tokens: tuple[int, ...]


def held_out(path: Path, fingerprint: str, count: int, seed: int = 0) -> list[Prompt]:
    """``count`` prompts, domains in turn, kinds in turn within a domain; the first of more are those of fewer.

    Args:
        path: Traces of the held-out split.
        fingerprint: Of the target.
        count: How many.
        seed: Of the order in which documents and conversations come.

    Raises:
        UserError: If there are not that many.
    """
    traces = TraceSet.load(path, fingerprint).split("heldout")
    decks = {domain: _deck(traces, domain, seed) for domain in sorted({trace.domain for trace in traces})}
    chosen: list[Prompt] = []
    while len(chosen) < count:
        before = len(chosen)
        for deck in decks.values():
            if deck and len(chosen) < count:
                chosen.append(deck.pop())
        if len(chosen) == before:
            raise UserError(f"{path}: expected {count} prompts of different groups, found {before}: ask for fewer")
    return chosen


def _deck(traces: Sequence[Trace], domain: str, seed: int) -> list[Prompt]:
    """One prompt of each group of a domain, kinds in turn, the next one last."""
    rng = random.Random(f"{seed}-{domain}")
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        if trace.domain == domain:
            groups.setdefault(trace.group, []).append(trace)
    by_kind: dict[str, list[Prompt]] = {kind: [] for kind in KINDS}
    for group in groups.values():
        last = max(group, key=lambda trace: trace.turn) if group[0].kind == "chat" else rng.choice(group)
        by_kind[last.kind].append(Prompt(last.prompt_id, domain, last.kind, last.turn, last.prompt_ids))
    for prompts in by_kind.values():
        rng.shuffle(prompts)
    deck: list[Prompt] = []
    while any(by_kind.values()):
        deck += [by_kind[kind].pop() for kind in KINDS if by_kind[kind]]
    return deck[::-1]
