"""Texts in batches of like length: right-padded, so that a causal network needs no mask at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch

from envs.zoo.texts import Text

POOL = 16
"""Batches that are sorted by length together; more = less padding, less shuffling."""


class Batch(NamedTuple):
    """Texts side by side, and what is asked at which position.

    Attributes:
        ids: ``(batch, n)`` prompt and output, padded with 0 on the right, where nothing looks.
        at: ``(positions,)`` flat index into ``(batch, n)`` of the token before each written token.
        targets: ``(positions,)`` row of the draft's vocabulary that holds the written token; -1 = none.
    """

    ids: torch.Tensor
    at: torch.Tensor
    targets: torch.Tensor


def collate(texts: Sequence[Text], vocab: torch.Tensor) -> Batch:
    """Make a batch. ``vocab`` is ``(V,)`` and ascending; the last output token is only ever a target."""
    width = max(len(text.prompt_ids) + len(text.output_ids) for text in texts) - 1
    ids = torch.zeros((len(texts), width), dtype=torch.long)
    at: list[int] = []
    written: list[int] = []
    for row, text in enumerate(texts):
        tokens = [*text.prompt_ids, *text.output_ids][:-1]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        first = row * width + len(text.prompt_ids) - 1
        at.extend(range(first, first + len(text.output_ids)))
        written.extend(text.output_ids)
    return Batch(ids, torch.tensor(at), vocabulary_rows(torch.tensor(written), vocab))


def vocabulary_rows(tokens: torch.Tensor, vocab: torch.Tensor) -> torch.Tensor:
    """Row of ``vocab`` (ascending) that holds each token, int64; -1 where none does."""
    ids = vocab.long()
    rows = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    return torch.where(ids[rows] == tokens, rows, -1)


def deal(lengths: Sequence[int], batch: int, seed: str) -> list[list[int]]:
    """Indices of one epoch's batches: shuffled, neighbours of like length, in random order.

    Args:
        lengths: Tokens of each text.
        batch: Texts of a batch (the last may be smaller).
        seed: The same seed deals the same batches.
    """
    rng = random.Random(seed)
    order = list(range(len(lengths)))
    rng.shuffle(order)
    batches: list[list[int]] = []
    for start in range(0, len(order), batch * POOL):
        pool = sorted(order[start : start + batch * POOL], key=lambda index: lengths[index])
        batches += [pool[at : at + batch] for at in range(0, len(pool), batch)]
    rng.shuffle(batches)
    return batches
