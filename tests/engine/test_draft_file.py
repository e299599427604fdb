"""The draft file: what goes in comes out within int8's rounding, and nothing damaged is taken for a draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from runtime.engine.draft_file import HEAD, DraftHeader, read_draft, read_draft_header, save_draft
from runtime.engine.draft_net import DraftNet, build_draft_net, draft_config
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.quantise import dequantise, quantise
from runtime.errors import UserError

VOCAB = torch.tensor([1, 4, 9, 25], dtype=torch.int32)
SMALL = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ROPE = {
    **SMALL,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
FAMILIES = {
    "llama": ROPE,
    "mistral": ROPE,
    "qwen2": ROPE,
    "qwen3": ROPE,
    "gpt2": {**SMALL, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
}


def tiny(family: str = "llama") -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family])).eval()  # type: ignore[no-untyped-call]


def saved(path: Path, target: Any) -> dict[str, torch.Tensor]:
    """Save the target's first two layers as a draft; returns the exact weights."""
    config = draft_config(target, 2)
    net = DraftNet(config, VOCAB)
    given = target.base_model.state_dict()
    weights = {name: given[name] for name in net.body.state_dict()}
    weights[HEAD] = target.get_output_embeddings().weight.detach()[VOCAB.long()]
    header = DraftHeader("tiny", "code", target_fingerprint(target), config, {"epochs": 3})
    save_draft(path, header, VOCAB, weights)
    return weights


def test_round_trip_within_half_a_level_of_int8(tmp_path: Path) -> None:
    target, path = tiny(), tmp_path / "a" / "tiny.draft.safetensors"
    weights = saved(path, target)
    draft = read_draft(path)
    assert draft.header == read_draft_header(path)
    assert (draft.header.name, draft.header.domain, draft.header.training) == ("tiny", "code", {"epochs": 3})
    assert draft.header.config["num_hidden_layers"] == 2
    assert torch.equal(draft.vocab, VOCAB) and draft.vocab.dtype == torch.int32
    assert draft.tensors.keys() == weights.keys()
    for name, weight in weights.items():
        bound = weight.abs().amax(-1, keepdim=True) / 127 / 2 * 1.001 if weight.dim() == 2 else 0.0
        assert bool(((draft.tensors[name] - weight).abs() <= bound).all()), name
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "nothing is left aside"


def test_file_holds_int8_and_no_embedding(tmp_path: Path) -> None:
    path = tmp_path / "tiny.draft.safetensors"
    saved(path, tiny())
    stored = load_file(path)
    assert stored["head.weight.int8"].dtype == torch.int8
    assert stored["head.weight.scale"].shape == (4,)
    assert not [name for name in stored if "embed" in name]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_net_equals_the_cut_target_and_its_cache_equals_one_forward(tmp_path: Path, family: str) -> None:
    target, path = tiny(family), tmp_path / "tiny.draft.safetensors"
    saved(path, target)
    net = build_draft_net(read_draft(path))
    ids = torch.tensor([[3, 8, 1, 30, 22, 7]])
    embeds = target.get_input_embeddings()(ids)
    with torch.no_grad():
        whole = net(embeds)
        cache = DynamicCache(config=net.body.config)
        parts = torch.cat([net(embeds[:, :4], cache), net(embeds[:, 4:], cache)], dim=1)
        exact = cut_logits(target, ids)
    assert whole.shape == (1, 6, 4)
    assert cache.get_seq_length() == 6
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole, exact, rtol=0.05, atol=0.02)


def cut_logits(target: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the target's own first two layers, by dropping the third."""
    layers = target.base_model.h if hasattr(target.base_model, "h") else target.base_model.layers
    del layers[2]
    target.config.num_hidden_layers = 2
    logits: torch.Tensor = target(ids, use_cache=False).logits[..., VOCAB.long()]
    return logits


def test_build_takes_no_embedding_memory(tmp_path: Path) -> None:
    path = tmp_path / "tiny.draft.safetensors"
    weights = saved(path, tiny())
    net = build_draft_net(read_draft(path))
    assert sum(p.numel() for p in net.parameters()) == sum(weight.numel() for weight in weights.values())


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a draft file, found none"):
        read_draft(tmp_path / "none.draft.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "tiny.draft.safetensors"
    saved(path, tiny())
    path.write_bytes(path.read_bytes()[:keep])
    for read in (read_draft, read_draft_header):
        with pytest.raises(UserError, match="not a readable draft file"):
            read(path)


def test_other_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={"schema": "specpilot-draft-99"})
    with pytest.raises(UserError, match="expected a draft file of schema specpilot-draft-1, got specpilot-draft-99"):
        read_draft(path)


def test_missing_header_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={"schema": "specpilot-draft-1"})
    with pytest.raises(UserError, match="damaged header"):
        read_draft_header(path)


def test_missing_tensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.draft.safetensors"
    weights = saved(path, tiny())
    header = read_draft_header(path)
    del weights["norm.weight"]
    save_draft(path, header, VOCAB, weights)
    with pytest.raises(UserError, match="weights and configuration do not fit"):
        build_draft_net(read_draft(path))


def test_vocabulary_and_head_must_fit(tmp_path: Path) -> None:
    header = DraftHeader("x", "x", "", {}, {})
    with pytest.raises(ValueError, match="expected a vocabulary"):
        save_draft(tmp_path / "x", header, VOCAB, {HEAD: torch.zeros(3, 8)})
    with pytest.raises(ValueError, match="ascending"):
        save_draft(tmp_path / "x", header, VOCAB.flip(0), {HEAD: torch.zeros(4, 8)})
    with pytest.raises(ValueError, match="finite weights"):
        save_draft(tmp_path / "x", header, VOCAB, {HEAD: torch.full((4, 8), torch.nan)})


def test_quantise_keeps_zero_rows_and_refuses_vectors() -> None:
    matrix = torch.tensor([[0.0, 0.0], [1.0, -0.5]])
    assert (dequantise(quantise(matrix)) - matrix).abs().max() <= 1 / 254
    with pytest.raises(ValueError, match="expected a matrix"):
        quantise(torch.zeros(3))


def test_fingerprint_ignores_bf16_and_sees_a_changed_weight() -> None:
    target = tiny().to(torch.bfloat16)
    before = target_fingerprint(target)
    assert target_fingerprint(target.to(torch.float32)) == before
    with torch.no_grad():
        target.base_model.norm.weight.add_(0.1)
    assert target_fingerprint(target) != before
