"""The compiled kernels: the same numbers as torch, at every width, and only where a model has that very form."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from runtime.engine.draft_file import DraftHeader, save_draft
from runtime.engine.draft_net import DraftNet, draft_config
from runtime.engine.dtypes import compute_dtype
from runtime.engine.kv_cache import GrowingCache
from runtime.engine.loaded_draft import load_draft
from runtime.engine.native.blocks import Form, blocks_of
from runtime.engine.native.install import install
from runtime.engine.native.integers import FORMS as FORMS_OF_INTEGERS
from runtime.engine.native.integers import IntegerLinear, has_integers
from runtime.engine.native.leaders import leaders, likeliest
from runtime.engine.native.library import kernels
from runtime.engine.native.linear import BlockLinear
from runtime.engine.native.modules import FEW_ROWS, CachedAttention, GatedMLP, NarrowMask, Norm
from runtime.engine.native.products import NEAREST, UNCOMPRESSED
from runtime.engine.native.shared import Part, SharedProduct
from runtime.engine.packing import weight_bytes
from runtime.engine.transformers_model import TransformersModel
from tests.tiny import SETTINGS, VOCAB, random_model

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no C compiler")
pytestmark = needs_kernels

WIDE_HEADS = {**SETTINGS, "head_dim": 16, "hidden_size": 64}
TOKENS = [int(i) for i in torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(1))]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kinds(model: nn.Module) -> set[str]:
    known = (CachedAttention, GatedMLP, Norm, BlockLinear, Part)
    return {type(part).__name__ for part in model.modules() if isinstance(part, known)}


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 23, 131])
@pytest.mark.parametrize("outputs", [1, 6, 33])
def test_product_is_that_of_the_weight(form: Form, rows: int, outputs: int) -> None:
    blocks = blocks_of(normal(outputs, 96), form)
    bias = nn.Parameter(normal(outputs, seed=2), requires_grad=False)
    layer, x = BlockLinear(blocks, bias), normal(1, rows, 96, seed=1)
    torch.testing.assert_close(layer(x), functional.linear(x, blocks.weight(), bias), rtol=1e-5, atol=3e-5)
    again = layer.blocks
    assert torch.equal(again.codes, blocks.codes)
    assert torch.equal(again.scales, blocks.scales)


@pytest.mark.parametrize(
    ("kind", "form"), [*((BlockLinear, form) for form in Form), *((IntegerLinear, form) for form in FORMS_OF_INTEGERS)]
)
def test_a_row_does_not_depend_on_the_others(kind: type[BlockLinear], form: Form) -> None:
    if kind is IntegerLinear and not has_integers():
        pytest.skip("no AVX-512 VNNI")
    layer, x = kind(blocks_of(normal(40, 128), form)), normal(40, 128, seed=1)
    whole = layer(x)
    for width in (1, 2, 3, 5, 9, 17):
        assert torch.equal(layer(x[:width]), whole[:width])
        assert torch.equal(layer(x[width : width + 1]), whole[width : width + 1])


# -- modules -----------------------------------------------------------------------------------------------------------


def test_shared_product_follows_the_rows_it_gets() -> None:
    linear = nn.Linear(8, 10, bias=False)
    shared = SharedProduct(linear, [4, 6])
    first, second = Part(shared, 0), Part(shared, 1)
    x, y = normal(1, 3, 8), normal(1, 3, 8, seed=1)
    with torch.no_grad():
        both = {id(each): linear(each) for each in (x, y)}
        for rows, part, cut in ((x, first, slice(0, 4)), (y, second, slice(4, 10)), (x, second, slice(4, 10)),
                                (x, second, slice(4, 10)), (x, first, slice(0, 4))):  # fmt: skip
            assert torch.equal(part(rows), both[id(rows)][..., cut])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gate_is_silu(scale: float) -> None:
    both = normal(1, 3, 64) * scale
    got = torch.empty(1, 3, 32)
    kernels().gate(both.data_ptr(), got.data_ptr(), 3, 32, 1)
    expected = functional.silu(both[..., :32]) * both[..., 32:]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6 * scale * scale)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 200])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_attention_is_torchs(length: int, spread: float) -> None:
    heads, groups, size, rows, capacity = 6, 2, 32, 3, 256
    qkv, keys, values = normal(rows, (heads + 2 * groups) * size), normal(groups, capacity, size), normal(
        groups, capacity, size, seed=1)  # fmt: skip
    qkv[:, : heads * size] *= spread
    turn = torch.ones(rows, size), torch.zeros(rows, size)
    seen = torch.empty(rows, heads * size)
    kernels().attend(
        qkv.data_ptr(), turn[0].data_ptr(), turn[1].data_ptr(), keys.data_ptr(), values.data_ptr(), seen.data_ptr(),
        rows, length, capacity, heads, groups, size, 0.2, 2,
    )  # fmt: skip
    split = qkv.view(rows, heads + 2 * groups, size).transpose(0, 1)
    assert torch.equal(keys[:, length : length + rows], split[heads : heads + groups])
    assert torch.equal(values[:, length : length + rows], split[heads + groups :])
    hidden = torch.arange(length + rows)[None, :] > length + torch.arange(rows)[:, None]
    exact_qkv, exact_keys, exact_values = (each.double() for each in (split, keys, values))
    expected = functional.scaled_dot_product_attention(
        exact_qkv[:heads], exact_keys[:, : length + rows].repeat_interleave(3, dim=0),
        exact_values[:, : length + rows].repeat_interleave(3, dim=0), attn_mask=~hidden, scale=0.2,
    )  # fmt: skip
    got = seen.view(rows, heads, size).transpose(0, 1).double()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=3e-6 * spread)


@pytest.mark.parametrize("count", [2, 16, 61, 1000])
def test_leaders_are_those_of_a_search(count: int) -> None:
    logits = torch.stack([normal(count, seed=seed) for seed in range(9)])
    logits[1, count // 2] = logits[1].max()  # equals: the first one leads, by nothing
    logits[2, -1] = 9.0
    logits[3, 0] = 9.0
    logits[4] = float("-inf")
    logits[4, count - 1] = 0.0
    best, ahead = leaders(logits)
    top = logits.topk(2, dim=-1).values
    assert best == [int((row == row.max()).nonzero()[0]) for row in logits]
    assert ahead == (top[:, 0] - top[:, 1]).tolist()


@pytest.mark.parametrize("count", [1, 16, 61, 4096])
def test_the_likeliest_is_that_of_a_softmax(count: int) -> None:
    row = 8.0 * normal(count)
    best, probability = likeliest(row)
    assert best == int(row.argmax())
    assert probability == pytest.approx(float(row.softmax(dim=-1).max()), rel=1e-5)


def test_what_is_not_a_number_leads_by_nothing() -> None:
    logits = normal(2, 61)
    logits[1, 40] = float("nan")
    _, ahead = leaders(logits)
    assert [math.isnan(lead) for lead in ahead] == [False, True]


# -- models ------------------------------------------------------------------------------------------------------------

FORMS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "llama": (WIDE_HEADS, {"CachedAttention", "GatedMLP", "Norm", "Part"}),
    "mistral": ({**WIDE_HEADS, "sliding_window": None}, {"CachedAttention", "GatedMLP", "Norm", "Part"}),
    "qwen2": (WIDE_HEADS, {"CachedAttention", "GatedMLP", "Norm", "Part"}),
    "qwen3": (WIDE_HEADS, {"GatedMLP", "Norm", "Part"}),
    "olmo2": ({key: value for key, value in WIDE_HEADS.items() if key != "head_dim"}, {"GatedMLP", "Part"}),
    "gemma": (WIDE_HEADS, {"CachedAttention", "Norm", "Part"}),
    "phi": ({key: value for key, value in WIDE_HEADS.items() if key != "head_dim"}, {"Part"}),
    "gpt2": ({"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96}, set()),
}


def made(family: str, **changes: Any) -> PreTrainedModel:
    return random_model(family, {**FORMS[family][0], **changes})


@pytest.mark.parametrize("family", FORMS)
def test_only_what_has_the_form_is_replaced(family: str) -> None:
    model = made(family)
    install(model, UNCOMPRESSED)
    assert kinds(model) >= FORMS[family][1] - {"Part"}
    assert ("CachedAttention" in kinds(model)) == ("CachedAttention" in FORMS[family][1])
    assert ("GatedMLP" in kinds(model)) == ("GatedMLP" in FORMS[family][1])


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("grid", [None, Form.FOUR, Form.HALVES])
def test_logits_are_those_of_the_model(family: str, grid: Form | None) -> None:
    """Narrow forwards, wide ones, and roll-backs; weights as they are and compressed."""
    network = made(family)
    if grid is not None:
        put_on_grid(network, grid)
    with torch.no_grad():
        expected = network(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    model = TransformersModel(network)
    assert ("BlockLinear" in kinds(network)) == (grid is not None)
    start = 0
    for width in (3, 1, 1, 5, FEW_ROWS, FEW_ROWS + 1, 1, 9):
        model.forward(TOKENS[:7], "last")  # rejected
        model.crop(start)
        got = model.forward(TOKENS[start : start + width], "all")
        torch.testing.assert_close(got, expected[start : start + width], rtol=1e-4, atol=1e-4)
        start += width
    model.crop(4)
    torch.testing.assert_close(model.forward(TOKENS[4:9], "all"), expected[4:9], rtol=1e-4, atol=1e-4)


def put_on_grid(network: PreTrainedModel, form: Form) -> None:
    """Round every matrix of the layers so that it lies on a grid."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if (parameter.dim() == 2 and "layers." in name) or (".h." in name and parameter.dim() == 2):
                turned = parameter.t() if ".h." in name else parameter
                if turned.shape[1] % 32 == 0:
                    rounded = blocks_of(turned.contiguous(), form).weight()
                    parameter.copy_(rounded.t() if ".h." in name else rounded)


def test_windowed_attention_stays() -> None:
    model = random_model("mistral", {**WIDE_HEADS, "sliding_window": 8})
    install(model, UNCOMPRESSED)
    assert "CachedAttention" not in kinds(model)
    assert NarrowMask(model).arguments(1, GrowingCache()) == {}


def test_other_turns_are_refused() -> None:
    """Cohere turns neighbours, not halves: it has all the names, and another answer."""
    model = random_model("cohere", {**WIDE_HEADS, "logit_scale": 1.0})
    install(model, UNCOMPRESSED)
    assert "CachedAttention" not in kinds(model)


def test_heads_that_are_turned_in_part_stay() -> None:
    """Nemotron turns half of a head; told to turn all of it, as in a trial, it does that too."""
    model = random_model("nemotron", WIDE_HEADS)
    install(model, UNCOMPRESSED)
    assert "CachedAttention" not in kinds(model)


BOUNDED: dict[str, dict[str, Any]] = {
    "gemma2": {"layer_types": ["full_attention"] * 3, "sliding_window": None},
    "olmo": {"clip_qkv": 8.0, "head_dim": None},
}


@pytest.mark.parametrize("family", BOUNDED)
def test_attention_that_bounds_large_numbers_stays(family: str) -> None:
    """Small random numbers do not come near the bound: no trial tells these from plain attention."""
    settings = {**WIDE_HEADS, "initializer_range": 0.02, **BOUNDED[family]}
    model = random_model(family, {key: value for key, value in settings.items() if key != "head_dim" or value})
    install(model, UNCOMPRESSED)
    assert "CachedAttention" not in kinds(model)


class Gated(nn.Module):
    """A gated MLP that cuts off, or wants to be told where it stands."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self.limit = limit
        self.gate_proj, self.up_proj = nn.Linear(64, 32, bias=False), nn.Linear(64, 32, bias=False)
        self.down_proj = nn.Linear(32, 64, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        gate = self.gate_proj(rows).clamp(max=self.limit)
        down: torch.Tensor = self.down_proj(functional.silu(gate) * self.up_proj(rows))
        return down


class ToldWhere(Gated):
    def forward(self, rows: torch.Tensor, layer: int) -> torch.Tensor:  # type: ignore[override]
        return super().forward(rows)


class NormOfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(32)), 1e-6

    def forward(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows + residual, (32,), self.weight, self.eps)


@pytest.mark.parametrize("module, replaced", [(Gated(), True), (Gated(limit=30.0), False), (ToldWhere(), False),
                                              (NormOfTwo(), False)])  # fmt: skip
def test_modules_of_another_form_stay_and_break_nothing(module: nn.Module, replaced: bool) -> None:
    parent = nn.ModuleDict({"part": module}).requires_grad_(False)
    install(parent, UNCOMPRESSED)
    assert (parent["part"] is not module) == replaced


def test_low_precision_is_left() -> None:
    model = random_model("llama", WIDE_HEADS, torch.bfloat16)
    assert install(model) == 0
    assert kinds(model) == set()


def test_compressed_weights_are_counted() -> None:
    network = made("llama", tie_word_embeddings=False)
    put_on_grid(network, Form.FOUR)
    before = weight_bytes(network)
    install(network)
    layers = sum(part.packed_bytes for part in network.modules() if isinstance(part, BlockLinear))
    assert 0 < layers < weight_bytes(network) < before


def test_int8_computes_in_floats_and_its_texts_are_exact() -> None:
    network = made("llama")
    model = TransformersModel(network, int8=True)
    assert model.dtype == torch.float32
    wide = model.forward(TOKENS[:9], "all")
    model.reset()
    narrow = torch.cat([model.forward([token], "all") for token in TOKENS[:9]])
    torch.testing.assert_close(narrow, wide, rtol=1e-4, atol=1e-4)


def cut(source: PreTrainedModel) -> DraftNet:
    """A draft of the model's first two layers."""
    net = DraftNet(draft_config(source, 2), torch.arange(VOCAB))
    given = source.base_model.state_dict()
    net.body.load_state_dict({name: given[name] for name in net.body.state_dict()})
    net.head.weight = nn.Parameter(source.get_output_embeddings().weight.detach())  # type: ignore[no-untyped-call]
    return net.eval().requires_grad_(False)


@pytest.mark.parametrize("right", [True, False])
def test_products_that_are_not_torchs_are_used_nowhere(
    right: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("runtime.engine.native.install._multiplies", lambda: right)
    source = made("llama")
    net = cut(source)
    header = DraftHeader("cut", "generalist", "", draft_config(source, 2), {})
    save_draft(tmp_path / "draft", header, net.vocab.int(), net.weights())
    assert ("BlockLinear" in kinds(load_draft(tmp_path / "draft").net)) == right
    assert compute_dtype(torch.int8) == (torch.float32 if right else torch.bfloat16)
    assert (install(source, NEAREST) > 0) == right


def test_draft_nets_use_the_kernels_too() -> None:
    source = made("llama")
    net = cut(source)
    rows = normal(1, 9, 64)
    with torch.inference_mode():
        expected = net(rows, None)
        install(net)
        net.narrow = NarrowMask(net.body)
        cache = GrowingCache()
        got = torch.cat([net(rows[:, start:end], cache) for start, end in ((0, 4), (4, 5), (5, 9))], dim=1)
    assert "CachedAttention" in kinds(net)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
