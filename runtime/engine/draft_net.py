"""The draft as a network: some of the target's layers and its final norm, and a head of V rows.

It has no input embedding. Callers hand it rows of the target's table (the output of
``target.get_input_embeddings()``), so a draft reads every token and spends no memory on reading.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.initialization import no_init_weights

from runtime.engine.draft_file import HEAD, DraftFile
from runtime.engine.kv_cache import GrowingCache, cache_argument
from runtime.engine.native.modules import NarrowMask
from runtime.errors import UserError

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel


PER_LAYER = ("layer_types", "no_rope_layers")
"""What a configuration lists layer by layer."""


class DraftNet(nn.Module):
    """A draft. ``vocab`` (V,) int64 maps its answers to token ids.

    Args:
        config: Hugging Face configuration of the target, cut to the draft's layers.
        vocab: ``(V,)`` token ids, ascending.
    """

    vocab: torch.Tensor

    def __init__(self, config: dict[str, Any], vocab: torch.Tensor) -> None:
        super().__init__()
        with no_init_weights():
            self.body = _body(config)
            self.head = nn.Linear(self.body.config.hidden_size, len(vocab), bias=False)
        self.register_buffer("vocab", vocab.long(), persistent=False)
        self.narrow: NarrowMask | None = None  # where compiled kernels were installed
        self._cache_argument = cache_argument(self.body.forward)

    def hidden(
        self,
        inputs_embeds: torch.Tensor,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """States behind the final norm, ``(batch, n, width)``; the head makes logits of them.

        Args:
            inputs_embeds: ``(batch, n, width)`` rows of the target's input embedding table, in any dtype.
            past_key_values: KV of earlier tokens, extended in place; None to keep none.
            **kwargs: ``attention_mask``, ``position_ids`` and what else the base model takes.
        """
        state = {self._cache_argument: past_key_values, "use_cache": past_key_values is not None}
        dtype = self.body.dtype if self.narrow is None else torch.float32  # asking walks through the modules
        rows = inputs_embeds.to(dtype)  # the target may run in another dtype
        if self.narrow is not None and isinstance(past_key_values, GrowingCache):
            kwargs |= self.narrow.arguments(rows.shape[1], past_key_values)
        hidden: torch.Tensor = self.body(inputs_embeds=rows, **state, **kwargs).last_hidden_state
        return hidden

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Logits over the draft's own vocabulary, ``(batch, n, V)``; arguments as in ``hidden``."""
        logits: torch.Tensor = self.head(self.hidden(inputs_embeds, past_key_values, **kwargs))
        return logits

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights by the names a draft file gives them (not copied)."""
        return {**self.body.state_dict(), HEAD: self.head.weight.detach()}

    def load_weights(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over weights without copying them.

        Raises:
            RuntimeError: If a weight is missing, unknown or of another shape.
        """
        body = {name: tensor for name, tensor in tensors.items() if name != HEAD}
        self.body.load_state_dict(body, assign=True)
        self.head.load_state_dict({"weight": tensors[HEAD]}, assign=True)


def build_draft_net(draft: DraftFile) -> DraftNet:
    """The network of a draft file, in evaluation mode; it shares the file's tensors.

    Raises:
        UserError: If the weights do not fit the configuration they came with.
    """
    net = DraftNet(draft.header.config, draft.vocab)
    try:
        net.load_weights(draft.tensors)
    except RuntimeError as error:
        raise UserError(
            f"draft '{draft.header.name}': weights and configuration do not fit; distill it again ({error})"
        ) from error
    return net.eval()


def draft_config(target: PreTrainedModel, layers: int | Sequence[int]) -> dict[str, Any]:
    """The target's configuration cut to some of its layers.

    Args:
        target: The target.
        layers: How many of its first layers, or which ones, ascending.

    Raises:
        ValueError: If the target has no such layers, or there is none.
    """
    config = copy.deepcopy(target.config)
    count = config.num_hidden_layers
    if isinstance(layers, int) and not 1 <= layers <= count:
        raise ValueError(f"expected 1 to {count} layers (the target's), got {layers}")
    chosen = list(range(layers) if isinstance(layers, int) else layers)
    if not chosen or chosen != sorted(set(chosen) & set(range(count))):
        raise ValueError(f"expected layers from 0 to {count - 1} (the target's), ascending, got {chosen}")
    config.num_hidden_layers = len(chosen)
    for name in PER_LAYER:
        if listed := getattr(config, name, None):
            setattr(config, name, [listed[layer] for layer in chosen])
    data: dict[str, Any] = config.to_dict()
    for key in ("_name_or_path", "transformers_version", "quantization_config", "id2label", "label2id"):
        data.pop(key, None)
    return data


def _body(data: dict[str, Any]) -> PreTrainedModel:
    """The base model without its embedding table (built with one row, then dropped)."""
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = AutoConfig.for_model(**{**data, "vocab_size": 1, **tokens})
    body: PreTrainedModel = AutoModel.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    body.set_input_embeddings(nn.Identity())
    return body
