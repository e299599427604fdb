"""Where every n-gram of the texts occurs: what a look-up needs to know of the texts before.

``runtime.decoding.drafters.lookup`` keeps tables of what it was shown. Here all texts are known ahead, so one index
serves every stream: it is asked for the last place in one text, before a given place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.batched.kernel.tables import GRAM_STRIDE, Ints, Longs
from runtime.decoding.drafters.lookup import LONGEST, SHORTEST


def index_grams(texts: Sequence[tuple[int, ...]]) -> tuple[Ints, Longs, Longs]:
    """Index all n-grams of ``SHORTEST`` to ``LONGEST`` tokens.

    Returns:
        By token of all texts and n: the n-gram that ends there, -1 = it would begin before its text; where each
        n-gram's entries begin, shape (n-grams + 1,); and the entries, ``text * GRAM_STRIDE + position``, ascending.
    """
    tokens = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    text = np.repeat(np.arange(len(texts)), lengths)
    position = np.arange(len(tokens)) - np.repeat(lengths.cumsum() - lengths, lengths)
    keys = text * GRAM_STRIDE + position
    ids = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    names, grams = ids, np.full((len(tokens), LONGEST - SHORTEST + 1), -1, dtype=np.int32)
    found: list[Longs] = []
    counts: list[Longs] = []
    first = 0
    for n in range(2, LONGEST + 1):
        longer = np.concatenate([[0], names[:-1]]) * (ids.max() + 1) + ids
        names = np.unique(longer, return_inverse=True)[1].astype(np.int64)
        whole = np.flatnonzero(position >= n - 1)
        if n < SHORTEST or not len(whole):
            continue
        _, dense, count = np.unique(names[whole], return_inverse=True, return_counts=True)
        grams[whole, n - SHORTEST] = first + dense
        found.append(keys[whole[np.argsort(dense, kind="stable")]])
        counts.append(count.astype(np.int64))
        first += len(count)
    starts = np.concatenate([[0], *counts]).cumsum()
    return grams, starts.astype(np.int64), np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
