"""The engine that runs any Hugging Face causal language model of full-attention layers, on CPU or CUDA."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from runtime.engine.base import Logits
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.kv_cache import GrowingCache
from runtime.engine.kv_state import KVState, total_length
from runtime.engine.packing import pack_linears, weight_bytes
from runtime.errors import UserError

DEFAULT_CONTEXT_LIMIT = 2048
"""For models that do not say how far they can read."""


class TransformersModel:
    """Implements ``CausalModel``.

    Args:
        model: The model, on its device and in its dtype. It is taken over: on CPU in fp32 its linear layers are packed.
        pack: Whether to pack; for measurements.

    Raises:
        UserError: If the model keeps state that cannot be rolled back.
    """

    def __init__(self, model: PreTrainedModel, pack: bool = True) -> None:
        refuse_unless_croppable(model)
        self.model: PreTrainedModel = model.eval()  # type: ignore[no-untyped-call]
        model.requires_grad_(False)
        self._dtype, self._device = model.dtype, model.device
        self.fingerprint = target_fingerprint(model)  # before packing: packed weights are no parameters
        if pack:
            pack_linears(model)
        config = model.config.get_text_config(decoder=True)
        self._vocab_size = int(config.vocab_size)
        self._context_limit = int(getattr(config, "max_position_embeddings", None) or DEFAULT_CONTEXT_LIMIT)
        self._weight_bytes = weight_bytes(model)
        self._embedding = model.get_input_embeddings()
        accepted = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self._can_keep_logits = "logits_to_keep" in accepted
        self._cache = GrowingCache()
        self._length = 0
        self._kv_bytes_per_token = self._measure_kv()

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TransformersModel:
        """Load a model from a local folder.

        Raises:
            UserError: If the folder holds no readable model, or one that cannot be rolled back.
        """
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise UserError(
                f"{folder}: expected a folder with a causal language model (config.json and safetensors), got: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}; check the path or fetch the "
                "model again with `specpilot pull`"
            ) from error
        model.to(torch.device(device))  # type: ignore[arg-type]
        return cls(model)

    @property
    def length(self) -> int:
        return self._length

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def context_limit(self) -> int:
        return self._context_limit

    @property
    def kv_bytes_per_token(self) -> int:
        return self._kv_bytes_per_token

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        if not tokens:
            raise ValueError("expected at least one token to forward, got none")
        end = self._length + len(tokens)
        if end > self._context_limit:
            raise ValueError(
                f"expected a sequence of at most {self._context_limit} tokens (the model's context), got {end}: "
                "shorten the prompt or the answer"
            )
        arguments: dict[str, Any] = {self._cache_argument: self._cache, "use_cache": True}
        if logits == "last" and self._can_keep_logits:
            arguments["logits_to_keep"] = 1
        try:
            ids = torch.tensor([tokens], dtype=torch.long, device=self._device)
            rows: torch.Tensor = self.model(input_ids=ids, **arguments).logits[0]  # (n or 1, vocab)
        except BaseException:
            self._cache.crop_to(self._length)
            raise
        self._length = end
        return rows[-1:].float() if logits == "last" else rows.float()

    def crop(self, length: int) -> None:
        if length < 0:
            raise ValueError(f"expected a length of at least 0, got {length}")
        self._cache.crop_to(length)
        self._length = min(self._length, length)

    @torch.inference_mode()
    def export_kv(self, start: int, end: int) -> KVState:
        if not 0 <= start < end <= self._length:
            raise ValueError(f"expected a range within 0 to {self._length} (tokens in the cache), got {start} to {end}")
        return KVState(self._cache.copy_out(start, end))

    @torch.inference_mode()
    def import_kv(self, states: Sequence[KVState], length: int) -> None:
        if not 0 < length <= total_length(states):
            raise ValueError(f"expected a length of 1 to {total_length(states)} (tokens stored), got {length}")
        self._length = 0
        self._cache.crop_to(0)
        for state in states:
            self._cache.append(state.layers, min(state.length, length - self._length))
            self._length += state.length
            if self._length >= length:
                break
        self._length = length

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        rows: torch.Tensor = self._embedding(torch.tensor([tokens], dtype=torch.long, device=self._device))
        return rows

    def reset(self) -> None:
        self.crop(0)

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _measure_kv(self) -> int:
        """Forward two tokens, roll one back: shows that it works, and what a token weighs."""
        probe = int(self.model.config.get_text_config(decoder=True).pad_token_id == 0)  # a pad token would warn
        self.forward([probe, probe], "last")
        self.crop(1)
        again = self.forward([probe], "last")
        if self._cache.length != 2 or not bool(torch.isfinite(again).all()):
            raise UserError(
                f"{type(self.model).__name__} does not keep its sequence in a cache that can be rolled back: "
                "speculative decoding needs a target of full attention with finite logits; choose another model"
            )
        size = sum(k.numel() * k.element_size() + v.numel() * v.element_size() for k, v in self._cache.copy_out(0, 1))
        self.reset()
        return size


def refuse_unless_croppable(model: PreTrainedModel) -> None:
    """Make sure that a model's state can be rolled back token by token.

    Raises:
        UserError: If the model is recurrent, has sliding-window layers, or is an encoder-decoder.
    """
    name = type(model).__name__
    advice = "choose a target of full attention (Llama, Qwen, SmolLM, GPT-2 and their like)"
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{name} is an encoder-decoder; expected a decoder-only model: {advice}")
    if getattr(model, "_is_stateful", False):
        raise UserError(f"{name} keeps a recurrent state, which cannot be rolled back after a rejected guess: {advice}")
    for layer in DynamicCache(config=config).layers:
        if type(layer) is not DynamicLayer:
            kind = "sliding-window attention" if getattr(layer, "is_sliding", False) else type(layer).__name__
            raise UserError(
                f"{name} has layers with {kind}, whose cache forgets what a rejected guess would need back: {advice}"
            )
