"""Stored KV in numbers: a *chain* is one block of tokens behind certain blocks, interned over all texts.

Two texts that begin with the same n blocks share their first n chains, so that a stored prefix is found by comparing
numbers; see ``runtime.memory.kv_tree``, where a node is what a chain is here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.batched.kernel.tables import Ints, Longs
from runtime.core import BLOCK_TOKENS


def intern_chains(texts: Sequence[tuple[int, ...]]) -> tuple[Ints, Longs, Longs]:
    """Chains of texts.

    Args:
        texts: Tokens of every text, the prompt first.

    Returns:
        The chain of every whole block, text behind text; where each text's begin, shape (texts,); and where the
        tokens of every chain begin in all texts' tokens, one behind the other, shape (chains,).
    """
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    chains: list[int] = []
    starts: list[int] = []
    places: list[int] = []
    begin = 0
    for tokens in texts:
        starts.append(len(chains))
        above = -1
        for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = above, tokens[at : at + BLOCK_TOKENS]
            if key not in known:
                known[key] = len(known)
                places.append(begin + at)
            above = known[key]
            chains.append(above)
        begin += len(tokens)
    return np.array(chains, dtype=np.int32), np.array(starts, dtype=np.int64), np.array(places, dtype=np.int64)
