"""How much the width of a forward changes what it says."""

from __future__ import annotations

import torch

from runtime.engine.base import CausalModel

TOKENS = 9
"""Of the sequence that is tried: one, and a verification of eight behind it."""


def change_by_width(model: CausalModel) -> float:
    """Largest difference between logits of a wide forward and of narrow ones, and between what follows both.

    A prompt forwarded at once and one in two pieces are compared, too. The sequence of ``model`` is used up.
    """
    tokens = [token % model.vocab_size for token in range(3, 3 + min(TOKENS, model.context_limit - 1))]
    model.reset()
    model.forward(tokens[:1], "last")
    narrow = torch.cat([model.forward([token], "last") for token in tokens[1:]])
    model.crop(1)
    wide = model.forward(tokens[1:], "all")
    model.crop(len(tokens) - 1)
    behind = model.forward(tokens[-1:], "last")  # behind keys and values of a wide forward
    model.reset()
    at_once = model.forward(tokens, "all")[1:]
    model.reset()
    changes = ((wide - narrow), (behind - narrow[-1:]), (at_once - narrow))
    return max(float(change.abs().max()) for change in changes)
