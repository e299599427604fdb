"""All that does not change while streams are stepped, as arrays; and the arrays of the streams themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Tables(NamedTuple):
    """W worlds, D drafts, T texts; columns as in ``envs.batched.kernel.columns``.

    Attributes:
        world_whole: (W, WORLD_WHOLE).
        world_real: (W, WORLD_REAL).
        spec: (D, SPEC).
        load: (W, D, LOAD).
        cost: Seconds, or plain steps, by a number of tokens, (W, COST_ROWS + 2 * D, longest + some).
        still: The part of the observation that never changes, (W, size).
        low: Lowest value of every entry of the observation, (size,).
        high: Highest.
        expected: Every draft's expected acceptance, (D,).
        gammas: Draft lengths.
        thresholds: Stop levels.
        rates: Share expected to be stored at first, weight it keeps.
        decay: Weight that evidence keeps after so many positions.
        text: (T, TEXT_COLUMNS).
        token: Tokens of all texts, prompt and output, one text behind the other.
        guess: By draft and place, (D, places, 1 + stop levels).
        sure: Calibrated probability of the guess, by draft and place, (D, places).
        right: Right guesses before a place of its text, by draft and place, (D, places).
        outlook: By place: predictions, and shifts by the last token, (places, 2, D).
        opening: Predictions behind the prompt, (T, D).
        chain: By text and block: its chain, (blocks,).
        chain_at: By chain: where its tokens begin in ``token``.
        gram: By token: the n-grams that end there, n = 2, 3, 4; -1 = begins before the text; (tokens, 3).
        gram_at: Where each n-gram's entries begin in ``gram_key``.
        gram_key: Where n-grams occur: text * ``GRAM_STRIDE`` + position of the last token, ascending for each n-gram.
        chance: Calibrated probability by length of a look-up's match, by draft, (D, 9).
        ends: Tokens that end a text.
        memory: Tokens that a generation of the look-up holds before it is rotated, (1,).
    """

    world_whole: Longs
    world_real: Doubles
    spec: Longs
    load: Doubles
    cost: Doubles
    still: Singles
    low: Singles
    high: Singles
    expected: Singles
    gammas: Longs
    thresholds: Doubles
    rates: Doubles
    decay: Doubles
    text: Longs
    token: Ints
    guess: Bytes
    sure: Singles
    right: Ints
    outlook: Singles
    opening: Singles
    chain: Ints
    chain_at: Longs
    gram: Ints
    gram_at: Longs
    gram_key: Longs
    chance: Doubles
    ends: Longs
    memory: Longs


GRAM_STRIDE = 1 << 20
"""More than the longest text has tokens."""


class Streams(NamedTuple):
    """Where N streams are; columns as in ``envs.batched.kernel.columns``.

    Attributes:
        whole: (N, WHOLE).
        real: (N, REAL).
        draft_whole: (N, D, DRAFT_WHOLE).
        draft_real: (N, D, DRAFT_REAL).
        evidence: (N, D, EVIDENCE).
        plan: The episode's requests, (N, requests, PLAN).
        first_token_s: Time to the first token of every request, (N, requests).
        node: Stored blocks; the last slot is the root; (N, slots + 1, NODE).
        node_used_s: When a block was last used, (N, slots + 1).
    """

    whole: Longs
    real: Doubles
    draft_whole: Longs
    draft_real: Doubles
    evidence: Singles
    plan: Longs
    first_token_s: Doubles
    node: Ints
    node_used_s: Doubles


class Seen(NamedTuple):
    """What a step leaves for those who decide.

    Attributes:
        vector: Observations, (N, size).
        mask: Legal values of every action dimension, (N, sum(nvec)).
        reward: Plain steps saved, (N,).
        illegal: Parts of the decision that fell back, (N,).
        ended: 0 = goes on, 1 = stream finished, 2 = truncated; (N,).
    """

    vector: Singles
    mask: Flags
    reward: Doubles
    illegal: Longs
    ended: Longs
