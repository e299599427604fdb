"""From what a client sends to prompt token ids."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

from runtime.server.faults import ApiError, unsupported, wrong
from runtime.server.schemas import Message


class PromptReader:
    """Makes token ids of chats and texts. May be used by several threads.

    It has a tokenizer of its own: a fast tokenizer must not be used by two threads at once, and the device's thread
    uses the other one to make text of tokens.

    Args:
        tokenizer: The model's; copied.
        vocab_size: Rows of the model's output.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = copy.deepcopy(tokenizer), vocab_size
        self._lock = threading.Lock()

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat, with what makes the model answer at their end.

        Raises:
            ApiError: If the model has no chat template, or it cannot render these messages.
        """
        if not self._tokenizer.chat_template:
            raise ApiError(400, "this model has no chat template: use /v1/completions", "no_chat_template")
        turns = [{"role": _role(message.role), "content": text_of(message)} for message in messages]
        with self._lock:
            try:
                encoded = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
            except Exception as error:  # templates raise classes of their own for turns they do not know
                raise wrong("messages", f"the model's chat template cannot render them ({error})") from None
        return list(encoded["input_ids"])

    def text(self, prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]) -> list[int]:
        """Token ids of the one prompt of a text completion.

        Raises:
            ApiError: If there are several prompts, or a token id is none of the model's.
        """
        if isinstance(prompt, str):
            return self._encode(prompt)
        if not prompt:
            return []
        if all(isinstance(token, int) for token in prompt):
            return self._known([token for token in prompt if isinstance(token, int)])
        if len(prompt) > 1:
            raise unsupported("prompt", "one prompt a request; send several requests")
        (only,) = prompt
        return self._encode(only) if isinstance(only, str) else self.text(only) if isinstance(only, list) else []

    def _encode(self, text: str) -> list[int]:
        with self._lock:
            return list(self._tokenizer(text)["input_ids"])

    def _known(self, tokens: list[int]) -> list[int]:
        highest = max(tokens, default=0)
        if highest >= self._vocab_size:
            raise wrong("prompt", f"token id {highest} is none of this model's: expected 0 to {self._vocab_size - 1}")
        return tokens


def text_of(message: Message) -> str:
    """The text of a message; its parts in order.

    Raises:
        ApiError: If a part is not text.
    """
    if isinstance(message.content, str):
        return message.content
    texts = []
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise unsupported("messages", f"a part of type {part.type!r}; this model reads text")
        texts.append(part.text)
    return "".join(texts)


def _role(role: str) -> str:
    return "system" if role == "developer" else role
