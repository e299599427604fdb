"""Targets in low precision: the text is that of the same target without drafts, and drafts stay in fp32."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from runtime.decoding.greedy import margin_of
from runtime.engine.draft_file import HEAD
from runtime.engine.dtypes import DTYPES, compute_dtype, parse_dtype
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.int8 import KERNEL_ROWS, Int8Linear, quantise_linears
from runtime.engine.loaded_draft import LoadedDraft
from runtime.engine.native.library import kernels
from runtime.engine.packing import weight_bytes
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from tests.engine.families import LONG, SHORT, decode, draft_of, drafts, made

LOW = ("bfloat16", "float16", "int8")


def target(family: str, dtype: str, device: str = "cpu") -> TransformersModel:
    """A fresh target; skips where this build of torch cannot run the dtype."""
    chosen = parse_dtype(dtype)
    network = made(family, compute_dtype(chosen))
    network.to(torch.device(device))  # type: ignore[arg-type]
    try:
        return TransformersModel(network, int8=chosen == torch.int8)
    except RuntimeError as error:
        pytest.skip(f"no {dtype} on {device}: {error}")


@cache
def plain(family: str, dtype: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    text, _ = decode(target(family, dtype), drafts(family), prompt, 0)
    assert len(set(text)) > 8
    return text


@pytest.mark.exact
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    ("family", "gamma", "prompt"),
    [("llama", 1, SHORT), ("llama", 2, LONG), ("llama", 4, SHORT), ("llama", 8, LONG), ("mistral", 4, LONG),
     ("gpt2", 4, SHORT)],
)  # fmt: skip
def test_text_is_the_same_targets_own(family: str, dtype: str, gamma: int, prompt: tuple[int, ...]) -> None:
    """Sources: huggingface/transformers #39421, #25420, #26869 (speculation in low precision)."""
    text, accepted = decode(target(family, dtype), drafts(family), prompt, gamma)
    assert text == plain(family, dtype, prompt)
    assert accepted > 8  # a draft in fp32 reads the embedding of a target in another dtype


@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_quantised_target_accepts_itself(gamma: int) -> None:
    """The control: a draft of the quantised weights agrees but for near-ties, so no step is lost on the way.

    Sources: ml-explore/mlx-lm #1423, #1470 (self-drafting on quantised targets).
    """
    model = target("llama", "int8")
    network = made("llama")
    state = network.state_dict()
    for name, part in model.model.named_modules():
        if isinstance(part, Int8Linear):
            state[f"{name}.weight"] = part.dequantised()
    state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"].bfloat16().float()
    itself = draft_of(network, "good")
    itself.net.load_weights(
        {**{name: state[f"model.{name}"] for name in itself.net.body.state_dict()}, HEAD: state["lm_head.weight"]}
    )
    steps = 48
    text, accepted = decode(model, (itself,), SHORT, gamma, steps)
    assert text == plain("llama", "int8", SHORT)[:steps]
    rounds = steps - accepted - 1  # every round gives one token of the target's own
    assert accepted >= 0.8 * gamma * rounds


def test_names() -> None:
    assert parse_dtype("bfloat16") == torch.bfloat16
    assert compute_dtype(torch.int8, "cuda") == torch.bfloat16
    assert compute_dtype(torch.int8) == (torch.bfloat16 if kernels() is None else torch.float32)
    with pytest.raises(UserError, match="expected one of float32, bfloat16, float16, int8"):
        parse_dtype("int4")


def test_margins_widen_with_the_rounding() -> None:
    assert 0 < margin_of(torch.float32) < margin_of(torch.float16) < margin_of(torch.bfloat16)
    assert margin_of(torch.float64) == margin_of(torch.bfloat16)  # unknown: the widest


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_folder_in_any_dtype_has_one_fingerprint(dtype: str, tmp_path: Path) -> None:
    network = made("llama")
    expected = target_fingerprint(network)
    network.save_pretrained(tmp_path)
    model = TransformersModel.load(tmp_path, dtype=parse_dtype(dtype))
    assert model.fingerprint == expected
    assert model.dtype == compute_dtype(parse_dtype(dtype))
    assert str(parse_dtype(dtype)) in model.kv_name  # KV of 8-bit weights is not that of bf16 weights
    assert model.forward([1, 2, 3], "all").dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, KERNEL_ROWS, KERNEL_ROWS + 1])
@pytest.mark.parametrize("kind", ["linear", "bias", "conv1d"])
def test_int8_linear_computes_with_its_weight(dtype: torch.dtype, rows: int, kind: str) -> None:
    torch.manual_seed(0)
    layer: nn.Linear | Conv1D
    if kind == "conv1d":
        layer = Conv1D(40, 64)  # type: ignore[no-untyped-call]
    else:
        layer = nn.Linear(64, 40, bias=kind == "bias")
    plain_weight = layer.weight.detach().t() if kind == "conv1d" else layer.weight.detach()
    layer.to(dtype)
    quantised = Int8Linear(layer)
    step = plain_weight.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((quantised.dequantised() - plain_weight).abs() <= step).all())
    x = torch.randn(1, rows, 64, dtype=dtype)
    expected = x.float() @ quantised.dequantised().t()
    if kind != "linear":
        expected = expected + layer.bias.detach().float()
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(quantised(x).float(), expected, rtol=tolerance, atol=tolerance)


def test_int8_takes_half_the_memory_and_keeps_the_embedding() -> None:
    network = made("llama", torch.bfloat16, tie_word_embeddings=False)
    before, table = weight_bytes(network), network.get_input_embeddings().weight
    linears = sum(part.weight.numel() for part in network.modules() if isinstance(part, nn.Linear))
    assert quantise_linears(network) == 2 * 7 + 1
    scales = sum(part.out_features for part in network.modules() if isinstance(part, Int8Linear)) * 2
    assert weight_bytes(network) == before - linears + scales
    assert network.get_input_embeddings().weight is table
    tied = made("llama", torch.bfloat16)
    quantise_linears(tied)
    assert tied.get_input_embeddings().weight.dtype == torch.bfloat16


def test_row_of_zeros_can_be_quantised() -> None:
    layer = nn.Linear(8, 3, bias=False)
    nn.init.zeros_(layer.weight)
    assert Int8Linear(layer)(torch.ones(1, 8)).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [*DTYPES])
def test_draft_on_cpu_guesses_for_a_target_on_the_gpu(dtype: str) -> None:
    """Source: huggingface/transformers #35099 (an assistant on another device)."""
    payloads: tuple[LoadedDraft, ...] = drafts("llama")
    expected, _ = decode(target("llama", dtype, "cuda"), payloads, SHORT, 0)
    text, accepted = decode(target("llama", dtype, "cuda"), payloads, SHORT, 4)
    assert text == expected
    assert accepted > 8
