"""A zoo's draft as a GGUF file: its weights in blocks of 8 bit, the order of rows as llama.cpp wants it.

A draft has no embedding table: it is fed rows of the target's. llama.cpp insists on a table, so the file holds one of
zeros that is never read. The file needs no tokenizer either: its ids are rows of the draft's head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.engine.draft_file import HEAD, DraftParts
from runtime.errors import UserError
from runtime.files import written_whole

FORM_VERSION = 1
"""Part of a kept file's name: raise it when the conversion changes."""
BLOCK = 32
"""Weights of a row that share a scale."""

_LAYER_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip

Array = npt.NDArray[np.float32]


def can_convert(config: dict[str, Any]) -> bool:
    """Whether drafts of such a configuration can be converted: Llama without biases and with plain rotation."""
    rope = config.get("rope_parameters") or {}
    return (
        config.get("model_type") == "llama"
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("attention_bias")
        and not config.get("mlp_bias")
        and rope.get("rope_type", "default") == "default"
        and config["hidden_size"] % BLOCK == 0
        and config["intermediate_size"] % BLOCK == 0
        and config["num_attention_heads"] * _head_width(config) % BLOCK == 0
    )


def write_draft_gguf(draft: DraftParts, path: Path) -> None:
    """Write a draft whose configuration ``can_convert``, aside first.

    Raises:
        UserError: If the package for writing is missing.
    """
    try:
        import gguf
    except ModuleNotFoundError as missing:
        raise UserError(
            f"drafts in llama.cpp need the package '{missing.name}': pip install 'specpilot[llamacpp]'"
        ) from None
    kinds = gguf.GGMLQuantizationType
    with written_whole(path) as aside:
        writer = gguf.GGUFWriter(aside, "llama")
        _write_facts(writer, draft)
        table = np.zeros(draft.shape(HEAD), dtype=np.float32)
        writer.add_tensor("token_embd.weight", gguf.quantize(table, kinds.Q4_0), raw_dtype=kinds.Q4_0)
        for name in draft.names:
            values = _values(draft, name)
            if values.ndim == 1:
                writer.add_tensor(_name_of(name), values)
            else:
                writer.add_tensor(_name_of(name), gguf.quantize(values, kinds.Q8_0), raw_dtype=kinds.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _write_facts(writer: Any, draft: DraftParts) -> None:
    config = draft.header.config
    rope = config.get("rope_parameters") or {}
    writer.add_name(draft.header.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(_head_width(config))
    writer.add_value_length(_head_width(config))
    writer.add_rope_dimension_count(_head_width(config))
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(len(draft.vocab))
    writer.add_tokenizer_model("no_vocab")


def _head_width(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _name_of(parameter: str) -> str:
    """What GGUF calls a draft file's parameter."""
    if parameter == HEAD:
        return "output.weight"
    if parameter == "norm.weight":
        return "output_norm.weight"
    _, layer, part = parameter.removesuffix(".weight").split(".", 2)
    return f"blk.{layer}.{_LAYER_PARTS[part]}.weight"


def _values(draft: DraftParts, name: str) -> Array:
    config, weight = draft.header.config, draft.tensor(name)
    if name.endswith("q_proj.weight"):
        weight = _pairs_side_by_side(weight, config["num_attention_heads"])
    elif name.endswith("k_proj.weight"):
        weight = _pairs_side_by_side(weight, config["num_key_value_heads"])
    values: Array = weight.contiguous().numpy()
    return values


def _pairs_side_by_side(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys as llama.cpp rotates them: a pair side by side, not half a head apart."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)
