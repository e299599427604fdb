"""Greedy verification: the committed text is the target's own greedy text, whatever was guessed.

The target forwards ``[pending, guess 1, …, guess g]`` at once; row i says what follows, and is right as long as all
guesses before it were. Forwards of different width round differently, so where the best two logits lie closer than the
rounding scale of the dtype, the position is decided again by a forward of width 1, as plain decoding would. With a
repetition penalty the logits are the penalised ones, for the choice and for the margin.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from runtime.decoding.sampling import penalised
from runtime.engine.base import CausalModel
from runtime.engine.native.leaders import leaders

MARGINS: dict[torch.dtype, float] = {torch.float32: 1e-3, torch.float16: 0.125, torch.bfloat16: 1.0}
"""Top-1/top-2 logit margin below which width may decide: at least twice the largest change of the gap between two of a
position's ten best tokens, forwards of width 2 to 9 against width 1 behind one cache. Measured, CPU, 145 positions of
SmolLM2-135M, and the largest of nine families of tiny random models:

                                    fp32      fp16     bf16    int8 (without kernels)
    gap, SmolLM2                    6e-5      0.0625   0.50    0.50
    gap, tiny                       4e-5      0.035    0.28    0.22
    any one logit, SmolLM2          1.1e-4    0.10     1.08    0.84
    positions under the margin      < 5%      10-19%   49%     45%

In fp16 and bf16 a wide forward also leaves other keys and values behind than narrow ones would: no margin can take that
back, so there the text is the target's own but for rare near-ties.
Sources: huggingface/transformers #25420, #26869, #39421."""


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


def margin_for(target: CausalModel) -> float:
    """The margin that an engine measured for itself (``guard_margin``), else that of its dtype."""
    measured = getattr(target, "guard_margin", None)
    return margin_of(target.dtype) if measured is None else float(measured)


def verify(
    target: CausalModel,
    pending: int,
    guesses: Sequence[int],
    eos_ids: Collection[int],
    margin: float,
    before: Sequence[int] = (),
    penalty: float = 1.0,
) -> Verdict:
    """Forward the pending token and the guesses behind it, and accept as far as the target agrees.

    The target's cache grows by all that was forwarded; the caller crops it to what is committed.

    Args:
        target: Holds all committed tokens but the pending one.
        pending: The last committed token.
        guesses: Tokens to verify; none = plain decoding.
        eos_ids: Tokens that end the text.
        margin: Logit margin below which a position of a wide forward is decided again.
        before: The committed tokens before the pending one; only the penalty asks for them.
        penalty: Repetition penalty; 1 = off.
    """
    inputs = (pending, *guesses)
    base, guards = target.length, 0
    tokens: list[int] = []

    def decide(start: int, end: int) -> tuple[list[int], list[bool]]:
        rows = target.forward(inputs[start:end], "all")  # (end - start, vocab)
        if penalty != 1.0:
            seen = (*before, *inputs)
            rows = torch.stack(
                [penalised(row, seen[: len(before) + start + i + 1], penalty) for i, row in enumerate(rows)]
            )
        return _decide(rows, margin)

    best, close = decide(0, len(inputs))
    offset = 0  # row 0 of ``best`` is position ``offset``
    while True:
        position = len(tokens)
        choice = best[position - offset]
        if close[position - offset]:
            target.crop(base + position)
            (choice,), _ = decide(position, position + 1)
            guards += 1
        tokens.append(choice)
        agreed = position < len(guesses) and guesses[position] == choice
        if choice in eos_ids or not agreed:
            return Verdict(tuple(tokens), position + agreed, guards)
        if target.length == base + position + 1:  # the guard cropped the rest away
            offset = position + 1
            best, close = decide(offset, len(inputs))


def _decide(logits: torch.Tensor, margin: float) -> tuple[list[int], list[bool]]:
    """The best token of each row (n, vocab), and whether it is too close to call; a width-1 forward always calls it."""
    best, ahead = leaders(logits)
    return best, [len(logits) > 1 and not lead >= margin for lead in ahead]  # also where it is not a number
