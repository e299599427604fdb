"""Answers in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.server.jobs import Usage


@dataclass(frozen=True)
class Shape:
    """What all parts of one answer have in common.

    Attributes:
        name: Id of the answer.
        model: The model.
        created: Unix time.
        fingerprint: Of what wrote it: weights and policy.
        chat: Whether it answers a chat.
    """

    name: str
    model: str
    created: int
    fingerprint: str
    chat: bool

    def whole(self, text: str, reason: str, usage: Usage, steps: list[Mapping[str, Any]] | None) -> dict[str, Any]:
        """The answer as one object."""
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
        )
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        kind = "chat.completion" if self.chat else "text_completion"
        extra = {} if steps is None else {"specpilot": {"steps": steps}}
        return {**self._head(kind), "choices": [choice], "usage": usage_of(usage), **extra}

    def first(self, wants_usage: bool) -> dict[str, Any] | None:
        """The part that opens a stream; only chats have one."""
        return self._part({"role": "assistant", "content": ""}, None, wants_usage) if self.chat else None

    def delta(self, text: str, wants_usage: bool, step: Mapping[str, Any] | None) -> dict[str, Any]:
        """A part with text."""
        part = self._part({"content": text} if text or self.chat else {}, None, wants_usage, text)
        return part if step is None else {**part, "specpilot": step}

    def last(self, reason: str, wants_usage: bool) -> dict[str, Any]:
        """The part that says why the text ended."""
        return self._part({}, reason, wants_usage)

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The part behind the last one, for ``stream_options.include_usage``."""
        return {**self._head(self._stream_kind), "choices": [], "usage": usage_of(usage)}

    def _part(self, delta: Mapping[str, Any], reason: str | None, wants_usage: bool, text: str = "") -> dict[str, Any]:
        said: dict[str, Any] = {"delta": dict(delta)} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return {**self._head(self._stream_kind), "choices": [choice], **({"usage": None} if wants_usage else {})}

    @property
    def _stream_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def usage_of(usage: Usage) -> dict[str, Any]:
    """``usage``; what OpenAI does not know stands under ``specpilot``. Times in seconds."""
    spent, tokens = usage.seconds, usage.completion_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": usage.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": usage.reused_tokens},
        "specpilot": {
            "rounds": usage.rounds,
            "drafted": usage.drafted,
            "accepted": usage.accepted,
            "corrections": usage.corrections,
            "acceptance_rate": round(usage.accepted / usage.drafted, 4) if usage.drafted else 0.0,
            "disk_tokens": usage.disk_tokens,
            "seconds": round(spent, 6),
            "plain_seconds": round(usage.plain_seconds, 6),
            "tokens_per_s": round(tokens / spent, 3) if spent else 0.0,
            "plain_tokens_per_s": round(tokens / usage.plain_seconds, 3) if usage.plain_seconds else 0.0,
            "stall_s": round(usage.stall_s, 6),
            "decide_s": round(usage.decide_s, 6),
            "waited_s": round(usage.waited_s, 6),
            "ttft_s": round(usage.ttft_s, 6),
        },
    }


def model_of(name: str, created: int, context_tokens: int) -> dict[str, Any]:
    """An entry of ``/v1/models``."""
    return {"id": name, "object": "model", "created": created, "owned_by": "specpilot", "max_model_len": context_tokens}
