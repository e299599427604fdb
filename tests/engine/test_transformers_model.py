"""The engine: roll-back, stored KV, packing, and models that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from runtime.engine.kv_state import KVState
from runtime.engine.packing import PackedLinear, can_pack, pack_linears, weight_bytes
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from tests.tiny import SETTINGS, VOCAB, random_model, target, tiny_network

TOKENS = [int(i) for i in torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(1))]
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SETTINGS, "mistral": {**SETTINGS, "sliding_window": None}, "qwen2": SETTINGS, "qwen3": SETTINGS,
    "gpt2": GPT2, "phi": {key: value for key, value in SETTINGS.items() if key != "head_dim"}, "olmo2": SETTINGS,
}  # fmt: skip


def made(family: str, **changes: Any) -> PreTrainedModel:
    return random_model(family, {**FAMILIES[family], **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_crop_forward_is_one_forward(family: str) -> None:
    network = made(family)
    with torch.no_grad():
        expected = network(input_ids=torch.tensor([TOKENS])).logits[0]
    model = TransformersModel(network)
    parts = [model.forward(TOKENS[:9], "all")]
    model.forward(TOKENS[20:29], "last")  # rejected
    model.crop(9)
    parts += [model.forward(TOKENS[9:10], "all"), model.forward(TOKENS[10:], "all")]
    assert model.length == len(TOKENS)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)
    model.crop(30)
    torch.testing.assert_close(model.forward(TOKENS[30:], "last")[0], expected[-1], rtol=1e-4, atol=1e-4)


def test_cache_grows_past_its_buffers() -> None:
    model = TransformersModel(made("llama", max_position_embeddings=1024))
    tokens = TOKENS * 20  # 800: buffers grow twice
    with torch.no_grad():
        expected = model.model(input_ids=torch.tensor([tokens])).logits[0, -1]
    for start in range(0, 800, 160):
        last = model.forward(tokens[start : start + 160], "last")
    torch.testing.assert_close(last[0], expected, rtol=1e-4, atol=1e-4)


def test_stored_kv_is_a_copy_both_ways() -> None:
    model = target()
    model.forward(TOKENS, "last")
    stored = model.export_kv(0, 30)
    assert stored.bytes == 30 * model.kv_bytes_per_token
    assert stored.bytes == sum(k.numel() * 4 + v.numel() * 4 for k, v in stored.layers)
    before = [k.clone() for k, _ in stored.layers]
    expected = model.export_kv(0, 25)
    model.reset()
    model.forward(TOKENS[10:], "last")
    model.import_kv([stored], 25)
    assert model.length == 25
    again = model.export_kv(0, 25)
    for (k, v), (k2, v2) in zip(again.layers, expected.layers, strict=True):
        assert torch.equal(k, k2)
        assert torch.equal(v, v2)
    model.forward(TOKENS[25:], "last")
    assert all(torch.equal(k, was) for (k, _), was in zip(stored.layers, before, strict=True))


def test_failed_import_leaves_no_sequence() -> None:
    model = target()
    model.forward(TOKENS, "last")
    good = model.export_kv(0, 20)
    odd = torch.zeros(1, 9, 10, 8)  # of nine heads
    with pytest.raises(RuntimeError, match=r"expand|size"):
        model.import_kv([good, KVState(odd, (good.layers[0], (odd, odd)))], 30)
    assert model.length == model._cache.length == 0
    expected = target().forward(TOKENS[:5], "all")
    assert torch.equal(model.forward(TOKENS[:5], "all"), expected)


def test_failed_forward_leaves_the_sequence() -> None:
    model = target()
    model.forward(TOKENS[:5], "last")
    with pytest.raises(ValueError, match="at most 160 tokens"):
        model.forward(TOKENS * 5, "last")
    with pytest.raises(ValueError, match="at least one token"):
        model.forward([], "last")
    with pytest.raises(IndexError):
        model.forward([VOCAB + 5], "last")
    assert model.length == 5
    with pytest.raises(ValueError, match="within 0 to 5"):
        model.export_kv(0, 6)


def test_sizes() -> None:
    network = tiny_network()
    model = TransformersModel(network)
    assert model.kv_bytes_per_token == 3 * 2 * 2 * 8 * 4
    assert model.vocab_size == VOCAB
    assert model.embed([1, 2]).shape == (1, 2, 32)
    assert model.dtype == torch.float32
    assert model.device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_gives_float32_logits(dtype: torch.dtype) -> None:
    model = TransformersModel(tiny_network(dtype))
    assert model.forward(TOKENS, "all").dtype == torch.float32
    assert model.kv_bytes_per_token == 3 * 2 * 2 * 8 * 2


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="specpilot pull"):
        TransformersModel.load(tmp_path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    tiny_network().save_pretrained(tmp_path)
    assert TransformersModel.load(tmp_path).vocab_size == VOCAB
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(UserError, match="specpilot pull"):
        TransformersModel.load(tmp_path)


needs_packing = pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN linear operators")


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 5, 9, 33])
def test_packed_linear_computes_the_same(bias: bool, rows: int) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(24, 40, bias=bias)
    x = torch.randn(1, rows, 24)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), rtol=1e-5, atol=1e-6)


@needs_packing
def test_packing_keeps_memory_and_the_embedding() -> None:
    network = tiny_network(tie_word_embeddings=False)
    before = weight_bytes(network)
    assert pack_linears(network) == 3 * 7 + 1
    assert weight_bytes(network) == before
    assert not any(type(part) is torch.nn.Linear for part in network.modules())
    tied = tiny_network()
    table_bytes, before = VOCAB * 32 * 4, weight_bytes(tied)
    pack_linears(tied)
    assert weight_bytes(tied) == before + table_bytes  # the tied table is the one that is held twice


def test_low_precision_is_not_packed() -> None:
    assert pack_linears(tiny_network(torch.bfloat16)) == 0
