"""The tiny random target as a GGUF file, beside the folder that it would be converted to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from tests.tiny import tiny_network

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
"""Parts of a layer: as transformers calls them, and as GGUF does."""

Array = npt.NDArray[np.float32]


def write_gguf_and_folder(root: Path, **changes: Any) -> tuple[Path, Path]:
    """A GGUF file and a folder of one random model, both below ``root``.

    Args:
        root: An empty folder.
        **changes: Of the tiny model's settings.
    """
    network = tiny_network(**changes)
    folder = root / "folder"
    network.save_pretrained(folder)
    path = root / "tiny.gguf"
    write_gguf(network, path)
    return path, folder


def write_gguf(network: PreTrainedModel, path: Path) -> None:
    """A Llama model with tied embeddings as a GGUF file of fp32 weights, without a tokenizer."""
    import gguf

    config: Any = network.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    for name, values in _tensors(network):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(network: PreTrainedModel) -> list[tuple[str, Array]]:
    """Names and values as GGUF has them."""
    config: Any = network.config
    weights: dict[str, torch.Tensor] = network.base_model.state_dict()
    tensors = [
        ("token_embd.weight", weights["embed_tokens.weight"]),
        ("output_norm.weight", weights["norm.weight"]),
    ]
    for layer in range(config.num_hidden_layers):
        for theirs, ours in NAMES.items():
            weight = weights[f"layers.{layer}.{theirs}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(ours)
            tensors.append((f"blk.{layer}.{ours}.weight", _interleaved(weight, heads) if heads else weight))
    return [(name, weight.detach().float().numpy().copy()) for name, weight in tensors]


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys in the order that llama.cpp turns them: pairs side by side, not half a head apart."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)
