"""How often a draft would have said what the target wrote."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from envs.zoo.batching import collate
from envs.zoo.texts import Text
from runtime.engine.draft_net import DraftNet

BATCH = 8


@torch.inference_mode()
def agreement(net: DraftNet, embed: nn.Module, texts: Sequence[Text]) -> float:
    """Fraction of written tokens that are the draft's greedy guess, given everything before them.

    A token outside the draft's vocabulary counts as a miss.

    Args:
        net: The draft.
        embed: The target's input embedding.
        texts: Texts it has not been trained on.

    Raises:
        ValueError: If there is no text.
    """
    if not texts:
        raise ValueError(
            "expected at least one text to measure agreement on, got none: give every domain held-out ones"
        )
    ordered = sorted(texts, key=lambda text: len(text.prompt_ids) + len(text.output_ids))
    matches = positions = 0
    for start in range(0, len(ordered), BATCH):
        batch = collate(ordered[start : start + BATCH], net.vocab)
        hidden = net.hidden(embed(batch.ids)).flatten(0, 1)[batch.at]
        matches += int((net.head(hidden).argmax(-1) == batch.targets).sum())
        positions += len(batch.targets)
    return matches / positions
