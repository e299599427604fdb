"""The target writes its own text: batched greedy generation, for distilling drafts and for traces.

Rows of a batch are left-padded. A batched forward rounds differently from a width-1 forward, so a near-tie may fall
the other way than in the decoder; the text is then still one the target would write, and traces are recorded against
this very text, so nothing downstream depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import StaticCache

from runtime.engine.kv_cache import cache_argument

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.inference_mode()
def write_batch(
    model: PreTrainedModel, prompts: list[list[int]], max_new_tokens: int, eos_ids: frozenset[int], pad_id: int
) -> list[list[int]]:
    """Greedy continuation of every prompt, cut behind its first end-of-sequence token.

    Args:
        model: The target, in evaluation mode.
        prompts: Token ids, one list a prompt; lengths may differ.
        max_new_tokens: Most tokens written for one prompt.
        eos_ids: Tokens that end a text (kept as its last token).
        pad_id: Any valid token id; padding is masked out.

    Returns:
        One list of token ids a prompt, between 1 and ``max_new_tokens`` long.
    """
    batch, longest = len(prompts), max(map(len, prompts))
    ids = torch.full((batch, longest), pad_id)
    mask = torch.zeros((batch, longest + max_new_tokens), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) : longest] = 1
    cache = StaticCache(config=model.config, max_cache_len=longest + max_new_tokens)
    positions = (mask[:, :longest].cumsum(1) - 1).clamp(min=0)
    written = torch.zeros((batch, max_new_tokens), dtype=torch.long)
    done = torch.zeros(batch, dtype=torch.bool)
    eos = torch.tensor(sorted(eos_ids))
    step_ids, step_positions, length = ids, positions, longest
    for step in range(max_new_tokens):
        out = model(
            step_ids,
            attention_mask=mask[:, :length],
            position_ids=step_positions,
            cache_position=torch.arange(length - step_ids.shape[1], length),
            logits_to_keep=1,
            **{cache_argument(model.forward): cache},
        )
        token = out.logits[:, -1].argmax(-1)
        written[:, step] = token
        done |= torch.isin(token, eos)
        if bool(done.all()):
            break
        mask[:, length] = 1
        length += 1
        step_ids, step_positions = token[:, None], step_positions[:, -1:] + 1
    return [_cut(row, eos_ids) for row in written.tolist()]


def _cut(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: index + 1]
    return tokens
