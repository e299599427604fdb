"""The guard decides the very position where two tokens are as good as equal, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch

from runtime.decoding.greedy import verify
from runtime.engine.base import CausalModel

WORDS, MARGIN, NEAR = 12, 1e-3, 1e-5
TEXT = (3, 7, 1, 9, 4, 10, 2, 8, 5, 6)
"""Plain decoding's text: token i follows the first i tokens."""


class Rounding:
    """A target whose wide forwards round a near-tie the wrong way; it always says ``TEXT``, by narrow forwards.

    Args:
        ties: Indices into ``TEXT`` where the best two tokens are nearly equal.
    """

    def __init__(self, ties: Sequence[int]) -> None:
        self.ties = ties
        self.length = 0
        self.widths: list[int] = []

    def forward(self, tokens: Sequence[int], logits: str) -> torch.Tensor:
        self.widths.append(len(tokens))
        rows = torch.zeros(len(tokens), WORDS)
        for row, at in enumerate(range(self.length, self.length + len(tokens))):
            right, other = TEXT[at], (TEXT[at] + 1) % WORDS
            wrong = at in self.ties and len(tokens) > 1
            rows[row, right], rows[row, other] = (5.0, 5.0 + NEAR) if wrong else (5.0, 5.0 - NEAR * (at in self.ties))
            if at not in self.ties:
                rows[row, other] = 1.0
        self.length += len(tokens)
        return rows

    def crop(self, length: int) -> None:
        self.length = min(self.length, length)


def verified(target: Rounding, guesses: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
    return verify(cast(CausalModel, target), 0, guesses, (), MARGIN)


@pytest.mark.parametrize("tie", range(9))
def test_a_near_tie_is_decided_where_it_is(tie: int) -> None:
    """transformers #39421, llama.cpp #25618, mlx-lm #1423: wide forwards round otherwise than narrow ones."""
    target = Rounding([tie])
    assert verified(target, TEXT[:8]) == (TEXT[:9], 8, 1)
    assert target.length == 9  # the pending token and all accepted guesses
    assert target.widths[:2] == [9, 1]  # one narrow forward, and what it cropped away


@pytest.mark.parametrize("tie", range(8))
def test_a_guess_that_rounding_would_accept_is_rejected(tie: int) -> None:
    wrong = (TEXT[tie] + 1) % WORDS
    guesses = (*TEXT[:tie], wrong, *TEXT[tie + 1 : 8])
    assert verified(Rounding([tie]), guesses) == (TEXT[: tie + 1], tie, 1)


@pytest.mark.parametrize("ties", [(0, 1), (2, 5), (7, 8), (1, 3, 5, 7), tuple(range(9)), ()])
def test_several_near_ties_are_each_decided_once(ties: tuple[int, ...]) -> None:
    assert verified(Rounding(ties), TEXT[:8])[:2] == (TEXT[:9], 8)
    assert verified(Rounding(ties), TEXT[:8])[2] == len(ties) - (8 in ties and 7 in ties)
