"""Greedy verification: the committed text is the target's own greedy text, whatever was guessed.

The target forwards ``[pending, guess 1, …, guess g]`` at once; row i says what follows, and is right as long as all
guesses before it were. Forwards of different width round differently, so where the best two logits lie closer than the
rounding scale of the dtype, the position is decided again by a forward of width 1, as plain decoding would.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from runtime.engine.base import CausalModel

MARGINS: dict[torch.dtype, float] = {torch.float32: 1e-3, torch.float16: 0.04, torch.bfloat16: 0.25}
"""Top-1/top-2 logit margin below which width may decide: twice the difference between cached and uncached logits seen
in fp16 (0.0195) and bf16 (0.125), a hundred times that of fp32 (1e-5).
Source: huggingface/transformers #25420, #26869."""


class Verdict(NamedTuple):
    """What the target said.

    Attributes:
        tokens: To commit: the accepted guesses and one token of the target's own. An ending token is the last one.
        accepted: Guesses accepted, up to and with an ending token.
        guard_forwards: Width-1 forwards that decided a near-tie again.
    """

    tokens: tuple[int, ...]
    accepted: int
    guard_forwards: int


def margin_of(dtype: torch.dtype) -> float:
    """The guard's margin for a dtype; the widest for one that is not known."""
    return MARGINS.get(dtype, max(MARGINS.values()))


def verify(
    target: CausalModel, pending: int, guesses: Sequence[int], eos_ids: Collection[int], margin: float
) -> Verdict:
    """Forward the pending token and the guesses behind it, and accept as far as the target agrees.

    The target's cache grows by all that was forwarded; the caller crops it to what is committed.

    Args:
        target: Holds all committed tokens but the pending one.
        pending: The last committed token.
        guesses: Tokens to verify; none = plain decoding.
        eos_ids: Tokens that end the text.
        margin: Logit margin below which a position of a wide forward is decided again.
    """
    inputs = (pending, *guesses)
    base, guards = target.length, 0
    tokens: list[int] = []
    best, close = _decide(target, inputs, margin)
    offset = 0  # row 0 of ``best`` is position ``offset``
    while True:
        position = len(tokens)
        choice = best[position - offset]
        if close[position - offset]:
            target.crop(base + position)
            (choice,), _ = _decide(target, inputs[position : position + 1], margin)
            guards += 1
        tokens.append(choice)
        agreed = position < len(guesses) and guesses[position] == choice
        if choice in eos_ids or not agreed:
            return Verdict(tuple(tokens), position + agreed, guards)
        if target.length == base + position + 1:  # the guard cropped the rest away
            offset = position + 1
            best, close = _decide(target, inputs[offset:], margin)


def _decide(target: CausalModel, inputs: Sequence[int], margin: float) -> tuple[list[int], list[bool]]:
    """The best token behind each input, and whether it is too close to call; a width-1 forward always calls it."""
    logits = target.forward(inputs, "all")  # (n, vocab)
    best = logits.argmax(dim=-1)
    if len(inputs) == 1:
        return best.tolist(), [False]
    top = logits.topk(2, dim=-1).values
    close = ~(top[:, 0] - top[:, 1] >= margin)
    return best.tolist(), close.tolist()
