"""The messages of a chat, and the prompts that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.errors import UserError


class Conversation:
    """What was said, turn by turn. A prompt is the whole of it, so its beginning is the prompt of the turn before.

    Args:
        tokenizer: The model's, with a chat template.
        system: What the model is told first; "" = what the template says by itself.

    Raises:
        UserError: If the model has no chat template.
    """

    def __init__(self, tokenizer: Any, system: str = "") -> None:
        if not tokenizer.chat_template:
            raise UserError(
                "this target has no chat template, so it cannot hold a conversation: use specpilot generate"
            )
        self._tokenizer = tokenizer
        self.system = system
        self._turns: list[dict[str, str]] = []

    def __len__(self) -> int:
        return len(self._turns) // 2

    def prompt(self, text: str) -> list[int]:
        """Token ids of the conversation with a new message at its end; nothing is kept yet.

        Raises:
            UserError: If the model's template cannot render it.
        """
        return self._encode([*self._turns, {"role": "user", "content": text}])

    def keep(self, text: str, answer: str) -> None:
        """Add a message and its answer."""
        self._turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forget every turn; what the model is told first stays."""
        self._turns.clear()

    def _encode(self, turns: Sequence[dict[str, str]]) -> list[int]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        try:
            encoded = self._tokenizer.apply_chat_template(
                [*first, *turns], add_generation_prompt=True, return_dict=True
            )
        except Exception as error:  # templates raise classes of their own, say, for a role they do not know
            raise UserError(f"the target's chat template cannot render this conversation ({error})") from None
        return list(encoded["input_ids"])
