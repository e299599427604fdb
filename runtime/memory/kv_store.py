"""Stored KV prefixes: immutable entries, found by the longest exact token prefix.

An entry holds the KV of a whole earlier request (prompt and answer). Any prefix of it is usable, so one entry of a
question about a document serves every other question about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


@dataclass
class KVEntry:
    """One stored prefix.

    Attributes:
        tokens: Token ids covered, int32, shape (length,).
        payload: The engine's KV state; never mutated. None in replay.
        bytes: Memory it takes.
        hits: How often a prefix of it was reused.
        last_used_s: Session time of the last use.
    """

    tokens: Tokens
    payload: Any
    bytes: int
    hits: int = 0
    last_used_s: float = 0.0


class Match(NamedTuple):
    """The best entry for a prompt and how many of its tokens are usable; (None, 0) if there is none."""

    entry: KVEntry | None
    tokens: int


@dataclass
class KVStore:
    """Entries in memory. It neither counts bytes against the budget nor chooses victims: the manager does."""

    bytes_per_token: int
    entries: list[KVEntry] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes held by all entries."""
        return sum(entry.bytes for entry in self.entries)

    def match(self, prompt_ids: tuple[int, ...]) -> Match:
        """The entry that shares the longest prefix with a prompt.

        At least one prompt token is left to forward, so at most ``len(prompt_ids) - 1`` tokens are usable.
        """
        prompt = np.asarray(prompt_ids[:-1], dtype=np.int32)
        best = Match(None, 0)
        for entry in self.entries:
            shared = common_prefix(entry.tokens, prompt)
            if shared > best.tokens:
                best = Match(entry, shared)
        return best

    def insert(self, tokens: tuple[int, ...], payload: Any, now_s: float) -> KVEntry:
        """Keep an entry; entries that are a prefix of it are dropped, it serves in their place."""
        new = np.asarray(tokens, dtype=np.int32)
        covered = [entry for entry in self.entries if common_prefix(entry.tokens, new) == len(entry.tokens)]
        hits = max((entry.hits for entry in covered), default=0)
        for entry in covered:
            self.remove(entry)
        entry = KVEntry(new, payload, len(new) * self.bytes_per_token, hits, now_s)
        self.entries.append(entry)
        return entry

    def remove(self, entry: KVEntry) -> None:
        """Drop an entry."""
        self.entries = [kept for kept in self.entries if kept is not entry]


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix of two token arrays."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length
