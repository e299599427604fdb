"""What a draft would have said along a text: one teacher-forced forward, then the run-ons of its wrong guesses.

All run-ons of a text grow together as one tree behind the text's own KV: each forward takes one token of every run-on
that is still alive, and a mask lets it see its own prefix of the text and its own earlier tokens, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache

from envs.trace_code import Codes, encode
from envs.traces import RUN_ON, DraftTrace
from runtime.engine.draft_net import DraftNet

FLOOR = 0.02
"""A run-on is followed while the product of raw confidences since (and with) the wrong guess is at least this.

Further tokens are recorded with the lowest code. A confidence stop has ended the guessing before that: of 365,000
run-ons given up in the default zoo, none has a calibrated product of 0.2 (the lowest stop level) or more.
"""


@torch.inference_mode()
def follow(
    net: DraftNet,
    embed: nn.Module,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    eos_ids: frozenset[int],
    floor: float = FLOOR,
) -> DraftTrace:
    """Record one draft along one text.

    Args:
        net: The draft.
        embed: The target's input embedding.
        prompt_ids: Prompt, P tokens.
        output_ids: What the target wrote, L tokens.
        eos_ids: Tokens that end a text; a draft stops behind them.
        floor: See ``FLOOR``; 0 = follow every run-on to its end.
    """
    ids = torch.tensor([[*prompt_ids, *output_ids][:-1]])
    cache = DynamicCache()
    hidden = net.hidden(embed(ids), cache)[0, len(prompt_ids) - 1 :]
    guess, confidence = _top(net, hidden)
    match = guess == torch.tensor(output_ids)
    run_on, start = _run_ons(net, embed, cache, guess, confidence, ~match, len(prompt_ids), eos_ids, floor)
    return DraftTrace(match.numpy(), encode(confidence.numpy()), run_on, start)


def _top(net: DraftNet, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy token ids and their probability over the draft's own vocabulary, both ``(n,)``."""
    logits = net.head(hidden).float()
    best, row = logits.max(-1)
    return net.vocab[row], (best - logits.logsumexp(-1)).exp()


def _run_ons(
    net: DraftNet,
    embed: nn.Module,
    cache: DynamicCache,
    guess: torch.Tensor,
    confidence: torch.Tensor,
    wrong: torch.Tensor,
    prompt: int,
    eos_ids: frozenset[int],
    floor: float,
) -> tuple[Codes, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Coded confidences behind every wrong guess, flat, and where each position's begin, shape (L + 1,)."""
    length = len(guess)
    found = torch.zeros(length, RUN_ON)
    counts = torch.where(wrong, RUN_ON, 0)
    eos = torch.tensor(sorted(eos_ids), dtype=torch.long)
    rows, tokens, reach = wrong.nonzero()[:, 0], guess[wrong], confidence[wrong]
    owner = torch.zeros(0, dtype=torch.long)
    text_at = torch.arange(prompt + length - 1)
    for step in range(RUN_ON):
        ended = torch.isin(tokens, eos)
        counts[rows[ended]] = step
        alive = ~ended & (reach >= floor)
        rows, tokens, reach = rows[alive], tokens[alive], reach[alive]
        if not len(rows):
            break
        owner = torch.cat([owner, rows])
        seen = torch.cat([text_at[None] < prompt + rows[:, None], owner[None] == rows[:, None]], dim=1)  # (alive, keys)
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        position_ids = (prompt + rows + step)[None]
        hidden = net.hidden(embed(tokens[None]), cache, attention_mask=mask, position_ids=position_ids)
        tokens, probability = _top(net, hidden[0])
        found[rows, step] = probability
        reach = reach * probability
    kept = torch.arange(RUN_ON)[None] < counts[:, None]
    start = np.concatenate([[0], counts.numpy().cumsum()]).astype(np.int32)
    return encode(found[kept].numpy()), start
