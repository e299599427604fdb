"""Which models can be a target, judged before anything is decoded.

A rejected guess must leave no trace, so all a model remembers of its sequence has to lie in a cache by token. That
holds for attention, full, windowed or chunked: the cache keeps every token and the mask decides what is seen.

    refused                         reason
    encoder-decoder                 not a decoder-only model
    recurrent or hybrid             its state is a sum over all tokens: nothing can be taken out of it again
    other caches                    shared between layers, compressed or indexed: cannot be cropped by token
    bidirectional attention         a later token changes what earlier ones were
"""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from runtime.errors import UserError

ADVICE = "choose a target whose layers are all attention (Llama, Mistral, Qwen2/3, Gemma, Phi, SmolLM, GPT-2, GPT-NeoX)"
DEFAULT_CONTEXT_LIMIT = 2048
"""For models that do not say how far they can read."""

_RECURRENT_LAYERS = ("linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent")


def refuse_unless_decoder(config: PreTrainedConfig, name: str) -> None:
    """Make sure that a configuration is one of a decoder-only model that can be rolled back; needs no weights.

    Args:
        config: The model's configuration.
        name: What to call the model.

    Raises:
        UserError: With the reason.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{name} is an encoder-decoder; expected a decoder-only model: {ADVICE}")
    text = config.get_text_config(decoder=True)
    if getattr(text, "use_bidirectional_attention", False) or not getattr(text, "is_causal", True):
        raise UserError(f"{name} has bidirectional attention, so it does not write from left to right: {ADVICE}")
    recurrent = sorted({kind for kind in getattr(text, "layer_types", None) or () if kind in _RECURRENT_LAYERS})
    if recurrent:
        raise _recurrent(f"{name} has layers of kind {', '.join(recurrent)}, which keep")


def refuse_unless_croppable(model: PreTrainedModel) -> None:
    """Make sure that a model's state can be rolled back token by token.

    Raises:
        UserError: With the reason.
    """
    name = type(model).__name__
    refuse_unless_decoder(model.config, name)
    if getattr(model, "_is_stateful", False):
        raise _recurrent(f"{name} keeps")
    for layer in DynamicCache(config=model.config).layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise UserError(
                f"{name} has layers whose cache ({type(layer).__name__}) cannot be rolled back token by token after a "
                f"rejected guess: {ADVICE}"
            )


def context_limit(config: PreTrainedConfig) -> int:
    """Longest sequence a model reads in one and the same way, in tokens.

    LongRoPE (Phi-3 with long context) turns all positions differently once the sequence is longer than the original
    context. Cached keys keep the old turn, and a forward across the border would turn the tokens before it wrongly,
    so such a model is used up to the border.
    """
    text = config.get_text_config(decoder=True)
    limit = int(getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT_LIMIT)
    ropes = _ropes(getattr(text, "rope_parameters", None) or {})
    for rope in ropes:
        if rope.get("rope_type") == "longrope":
            limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit


def _ropes(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Rope parameters of every layer type; most models have one set for all."""
    nested = [value for value in parameters.values() if isinstance(value, dict) and "rope_type" in value]
    return nested or [parameters]


def _recurrent(who: str) -> UserError:
    return UserError(f"{who} a recurrent state, which cannot be rolled back after a rejected guess: {ADVICE}")
