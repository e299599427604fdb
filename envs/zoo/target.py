"""The target as the zoo needs it: weights, tokenizer, and what ends a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.zoo.texts import Message
from runtime.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Target:
    """A loaded target.

    Attributes:
        model: fp32, in evaluation mode.
        tokenizer: Its tokenizer.
        eos_ids: Tokens that end a text.
    """

    model: PreTrainedModel
    tokenizer: Any
    eos_ids: frozenset[int]

    def encode(self, messages: list[Message]) -> list[int]:
        """Prompt token ids of a conversation, generation prompt included; plain text where there is no template."""
        if self.tokenizer.chat_template:
            encoded = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
            return list(encoded["input_ids"])
        return list(self.tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"])

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def load_target(name: str) -> Target:
    """Load a Hugging Face folder or hub id.

    Raises:
        UserError: If it cannot be loaded or names no end-of-sequence token.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        model.eval()  # type: ignore[no-untyped-call]
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(f"target '{name}': expected a Hugging Face model folder or hub id ({error})") from error
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = tokenizer.eos_token_id
    if ends is None:
        raise UserError(f"target '{name}': no end-of-sequence token; set eos_token_id in its generation_config.json")
    return Target(model, tokenizer, frozenset([ends] if isinstance(ends, int) else ends))
