"""A draft of a zoo as an assistant model for transformers: the very same guesses, at the same cost of its head.

A zoo's draft is some of the target's layers, its final norm, and a head of V rows; it reads through the target's
embedding table. The assistant is a model of the target's class with these weights. It shares the table. Its head
multiplies V rows, as the draft's does, and puts the logits where they belong in the target's vocabulary, minus infinity
elsewhere; so its likeliest token and its confidence are the draft's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from runtime.engine.draft_file import HEAD, DraftFile, read_draft


class ScatteredHead(nn.Module):
    """A head of V rows that answers over the whole vocabulary.

    Args:
        weight: ``(V, width)``.
        vocab: ``(V,)`` token ids of the rows.
        size: Of the whole vocabulary.
    """

    def __init__(self, weight: torch.Tensor, vocab: torch.Tensor, size: int) -> None:
        super().__init__()
        self.rows = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.rows.weight = nn.Parameter(weight, requires_grad=False)
        self.vocab, self.size = vocab.long(), size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """States ``(batch, n, width)`` to logits ``(batch, n, size)``."""
        logits: torch.Tensor = self.rows(hidden)
        whole = logits.new_full((*logits.shape[:-1], self.size), float("-inf"))
        return whole.index_copy_(-1, self.vocab, logits)


def assistant_of(path: Path, target: PreTrainedModel) -> PreTrainedModel:
    """The draft in a file as a model that ``generate(assistant_model=...)`` takes.

    Args:
        path: The draft file; not a recipe.
        target: The target, whose embedding table is shared.
    """
    draft: DraftFile = read_draft(path)
    size = int(target.config.vocab_size)
    config = AutoConfig.for_model(**{**draft.header.config, "vocab_size": 1, "tie_word_embeddings": False,
                                     "bos_token_id": None, "eos_token_id": None, "pad_token_id": None})  # fmt: skip
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    body = {name: tensor.float() for name, tensor in draft.tensors.items() if name != HEAD}
    table = target.get_input_embeddings()
    model.base_model.set_input_embeddings(nn.Identity())  # type: ignore[operator]
    model.base_model.load_state_dict(body)
    model.base_model.set_input_embeddings(table)  # type: ignore[operator]
    model.lm_head = ScatteredHead(draft.tensors[HEAD].float(), draft.vocab, size)
    model.config.vocab_size = size
    return model.eval().requires_grad_(False)  # type: ignore[no-untyped-call, no-any-return]
