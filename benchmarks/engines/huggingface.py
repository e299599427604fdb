"""Transformers' own ``generate``: plain, with an assistant model, with prompt lookup. Models as they come, fp32."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from benchmarks.engines.assistant import assistant_of
from benchmarks.engines.base import PLAIN, Contender

CONSTANT = (1, 2, 4, 8)
"""Draft lengths, without a confidence stop."""
LOOKUP = (2, 4, 8, 10)
"""Tokens of a prompt lookup."""
STOP = 0.4
"""The confidence below which an assistant stops by default."""


class Generate:
    """Implements ``Contender``.

    Args:
        name: In reports.
        family: ``plain``, ``assisted`` or ``lookup``.
        model: The target.
        eos_ids: Tokens that end a text.
        assistant: The assistant model; its length and stop are set before each answer.
        length: Constant length of its drafts; None = transformers' defaults.
        stop: Confidence below which it stops; 0 = never.
        lookup: Tokens of a prompt lookup; 0 = none.
    """

    def __init__(
        self,
        name: str,
        family: str,
        model: PreTrainedModel,
        eos_ids: Iterable[int],
        assistant: PreTrainedModel | None = None,
        length: int | None = None,
        stop: float = 0.0,
        lookup: int = 0,
    ) -> None:
        self.name, self.family = name, family
        self._model, self._assistant, self._length, self._stop = model, assistant, length, stop
        self._eos_ids = sorted(eos_ids)
        self._lookup: dict[str, Any] = {"prompt_lookup_num_tokens": lookup} if lookup else {}
        self._extra: dict[str, Any] = {} if assistant is None else {"assistant_model": assistant}

    def answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=self._eos_ids,
            pad_token_id=self._eos_ids[0],
            **self._lookup,
        )
        if self._assistant is not None:
            self._assistant.generation_config = self._assistant_settings()
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            written = self._model.generate(  # type: ignore[operator]
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **self._extra
            )
        return tuple(written[0, len(prompt) :].tolist())

    def settle(self) -> None:
        """Nothing goes on in the background."""

    def _assistant_settings(self) -> GenerationConfig:
        if self._length is None:
            return GenerationConfig()  # type: ignore[no-untyped-call]
        return GenerationConfig(  # type: ignore[no-untyped-call]
            num_assistant_tokens=self._length,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=self._stop,
        )


def generators(folder: Path, draft: Path, eos_ids: Iterable[int]) -> tuple[PreTrainedModel, list[Contender]]:
    """The target as transformers loads it, and everything that it offers.

    Args:
        folder: The target's folder.
        draft: File of the draft that assists.
        eos_ids: Tokens that end a text.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()  # type: ignore[no-untyped-call]
    assistant = assistant_of(draft, model)
    eos_ids = tuple(eos_ids)
    made = [
        Generate(PLAIN, "plain", model, eos_ids),
        Generate("transformers: assistant, defaults", "assisted", model, eos_ids, assistant),
    ]
    made += [
        Generate(f"transformers: assistant, {length}", "assisted", model, eos_ids, assistant, length)
        for length in CONSTANT
    ]
    made += [
        Generate(f"transformers: assistant, {length}, stop {STOP}", "assisted", model, eos_ids, assistant, length, STOP)
        for length in CONSTANT[-2:]
    ]
    made += [Generate(f"transformers: lookup, {tokens}", "lookup", model, eos_ids, lookup=tokens) for tokens in LOOKUP]
    return model, list(made)
