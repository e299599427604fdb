"""Whether a runner says what the network says without it. A mask that a family builds in its own way is found here."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.engine.graphs.base import Runner

WIDTHS = (3, 2, 1, 4)
"""Tokens of the forwards that are compared, one behind another."""


def agree(one: Runner, other: Runner, tokens: Sequence[int], tolerance: float) -> bool:
    """Forward the same tokens in both, which are empty before and after.

    Args:
        one: A runner of token ids.
        other: Another one of the same network.
        tokens: Token ids that the network has, repeated as needed; at least one.
        tolerance: Part of the spread of the logits by which they may differ.
    """
    text, at = [tokens[i % len(tokens)] for i in range(sum(WIDTHS))], 0
    alike = True
    for width in WIDTHS:
        inputs = torch.tensor([text[at : at + width]])
        first, second = one.forward(inputs, width), other.forward(inputs, width)
        alike &= bool((first - second).abs().max() <= tolerance * (second.max() - second.min()))
        at += width
    one.cache.crop_to(0)
    other.cache.crop_to(0)
    return alike
