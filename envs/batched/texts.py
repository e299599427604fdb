"""Texts as arrays: everything that depends on a text alone is worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.batched.chains import intern_chains
from envs.batched.grams import index_grams
from envs.batched.kernel import columns as col
from envs.batched.kernel.guesses import count_guesses
from envs.batched.kernel.tables import Bytes, Doubles, Singles
from envs.replay.bank import DraftView, Replayed, TraceBank
from envs.traces import Trace
from runtime.control.topic import TopicPredictor
from runtime.core import GAMMAS, STOP_LEVELS


def text_tables(
    bank: TraceBank, traces: Sequence[Trace], topic: TopicPredictor | None, eos_ids: frozenset[int]
) -> dict[str, Any]:
    """The fields of ``Tables`` that depend on texts.

    Args:
        bank: Holds the texts.
        traces: Those that streams are made of, in the order of their index.
        topic: Topic predictor.
        eos_ids: Tokens that end a text.
    """
    texts = [bank.text(trace.prompt_ids, trace.prompt_id) for trace in traces]
    whole = [(*text.trace.prompt_ids, *text.trace.output_ids) for text in texts]
    chain, chain_starts, chain_at = intern_chains(whole)
    gram, gram_at, gram_key = index_grams(whole)
    rows = np.zeros((len(texts), col.TEXT_COLUMNS), dtype=np.int64)
    rows[:, col.PROMPT] = [len(text.trace.prompt_ids) for text in texts]
    rows[:, col.LENGTH] = lengths = np.array([len(text.trace.output_ids) for text in texts])
    rows[:, col.TOKENS_AT] = np.cumsum([0, *map(len, whole)])[:-1]
    rows[:, col.PLACES_AT] = np.cumsum([0, *(lengths + 1)])[:-1]
    rows[:, col.CHAINS_AT] = chain_starts
    places = int((lengths + 1).sum())
    return {
        "text": rows,
        "token": np.concatenate([np.array(tokens, dtype=np.int32) for tokens in whole]),
        **_guesses(bank, texts, places),
        "outlook": np.concatenate([_outlook(bank, text, topic) for text in texts]),
        "opening": np.stack([_opening(bank, text, topic) for text in texts]),
        "chain": chain,
        "chain_at": chain_at,
        "gram": gram,
        "gram_at": gram_at,
        "gram_key": gram_key,
        "ends": np.array(sorted(eos_ids), dtype=np.int64),
    }


def _guesses(bank: TraceBank, texts: Sequence[Replayed], places: int) -> dict[str, Any]:
    drafts = len(bank.drafts)
    guess = np.zeros((drafts, places, 1 + len(STOP_LEVELS)), dtype=np.uint8)
    sure = np.zeros((drafts, places), dtype=np.float32)
    right = np.zeros((drafts, places), dtype=np.int32)
    tables = [np.asarray(table) for table in bank.tables]
    at = 0
    for text in texts:
        end = at + len(text.trace.output_ids)
        for draft, view in enumerate(text.views):
            if view is not None:
                _fill(view, tables[draft], guess[draft, at:end], sure[draft, at:end])
                right[draft, at : end + 1] = view.matches
        at = end + 1
    return {"guess": guess, "sure": sure, "right": right}


def _fill(view: DraftView, scores: Doubles, guess: Bytes, sure: Singles) -> None:
    """Guesses of one draft along one text."""
    run, codes = np.frombuffer(view.run, dtype=np.uint8), np.frombuffer(view.confidence, dtype=np.uint16)
    guess[:, col.RUN] = run
    sure[:] = scores[codes]
    run_on, start = np.array(view.run_on, dtype=np.uint16), np.array(view.start, dtype=np.int32)
    count_guesses(run, scores[codes], scores[run_on], start, np.array(STOP_LEVELS), GAMMAS[-1], guess)


def _outlook(bank: TraceBank, text: Replayed, topic: TopicPredictor | None) -> Singles:
    """Predictions behind 1 … L tokens of the output, and shifts by the last of them; the last place is not asked."""
    rows = np.zeros((len(text.trace.output_ids) + 1, 2, len(bank.drafts)), dtype=np.float32)
    rows[:-1, 0] = bank.expected if text.predicted is None else text.predicted
    if topic is not None:
        rows[:-1, 1] = topic.shift[list(text.trace.output_ids)]
    return rows


def _opening(bank: TraceBank, text: Replayed, topic: TopicPredictor | None) -> Singles:
    return bank.expected if topic is None else topic.predict(text.trace.prompt_ids)
