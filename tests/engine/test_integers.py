"""Products of integers and whole layers: the same bits at any width, a model's own numbers but for rounding."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from runtime.engine import transformers_model
from runtime.engine.native.blocks import Form, blocks_of
from runtime.engine.native.install import multiplies_integers
from runtime.engine.native.integers import FORMS, IntegerLinear, has_integers, rounded
from runtime.engine.native.layer import FusedLayer
from runtime.engine.native.library import kernels
from runtime.engine.native.modules import CachedAttention
from runtime.engine.transformers_model import TransformersModel
from runtime.engine.widths import change_by_width
from tests.engine import families
from tests.tiny import SETTINGS, VOCAB, random_model

WIDE: dict[str, Any] = {**SETTINGS, "head_dim": 16, "hidden_size": 64, "intermediate_size": 96}
TOKENS = [int(i) for i in torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(1))]
needs_integers = pytest.mark.skipif(not has_integers(), reason="no AVX-512 VNNI")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@needs_integers
def test_where_there_are_such_kernels_they_are_used() -> None:
    assert multiplies_integers()


@needs_integers
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [1, 16, 39])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 21])
def test_product_of_integers_is_that_of_the_rounded_rows(form: Form, outputs: int, rows: int) -> None:
    blocks = blocks_of(normal(outputs, 96), form)
    bias = nn.Parameter(normal(outputs, seed=2), requires_grad=False)
    layer, x = IntegerLinear(blocks, bias), normal(1, rows, 96, seed=1)
    x[0, 0, 32:64] = 0.0
    torch.testing.assert_close(layer(x), functional.linear(rounded(x), blocks.weight(), bias), rtol=1e-4, atol=1e-4)
    again = layer.blocks
    assert torch.equal(again.codes, blocks.codes) and torch.equal(again.scales, blocks.scales)


@needs_integers
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_stays_so(odd: float) -> None:
    layer, x = IntegerLinear(blocks_of(normal(16, 64), Form.FOUR)), normal(2, 64, seed=1)
    x[1, 40] = odd
    answer = layer(x)
    assert torch.isfinite(answer[0]).all()
    assert not torch.isfinite(answer[1]).any()


@needs_integers
def test_a_model_in_integers_says_the_same_at_any_width() -> None:
    model = TransformersModel(random_model("llama", WIDE), int8=True)
    assert "integers" in model.kv_name
    assert {type(part) for part in model.model.modules()} >= {FusedLayer, IntegerLinear}
    assert change_by_width(model) == 0.0
    whole = model.forward(TOKENS, "all")
    model.reset()
    model.forward(TOKENS[:30], "last")
    parts = [model.forward(TOKENS[start:end], "all") for start, end in ((30, 31), (31, 35), (35, 60))]
    assert torch.equal(torch.cat(parts), whole[30:])


@needs_integers
@pytest.mark.parametrize("family", ["mistral", "gpt2"])  # windowed layers; layers of another form
def test_a_model_whose_bits_depend_on_the_width_does_not_round_its_rows(family: str) -> None:
    model = TransformersModel(families.made(family), int8=True)
    if change_by_width(model) == 0.0:
        pytest.skip("this family's own layers do not depend on the width here")
    assert "integers" not in model.kv_name
    assert not any(isinstance(part, IntegerLinear) for part in model.model.modules())


@needs_integers
def test_where_integers_are_given_up_wide_forwards_have_their_mask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_model, "change_by_width", lambda model: 1.0)
    model = TransformersModel(random_model("llama", WIDE), int8=True)
    assert any(isinstance(part, CachedAttention) for part in model.model.modules())
    for prompt in (TOKENS[:6], TOKENS):  # a narrow one in an empty cache, and a wide one
        at_once = model.forward(prompt, "all")
        model.reset()
        one_by_one = torch.cat([model.forward([token], "last") for token in prompt])
        model.reset()
        torch.testing.assert_close(at_once, one_by_one, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
def test_a_layer_of_such_parts_is_one_call() -> None:
    model = random_model("llama", WIDE)
    blocks = {name: blocks_of(w.detach(), Form.EIGHT) for name, w in model.named_parameters() if w.dim() == 2}
    for name, weight in model.named_parameters():
        if name in blocks:
            weight.data = blocks[name].weight()
    fused, plain = TransformersModel(copy.deepcopy(model)), TransformersModel(model, native=False)
    assert sum(isinstance(part, FusedLayer) for part in fused.model.modules()) == WIDE["num_hidden_layers"]
    for start, end in ((0, 20), (20, 21), (21, 26), (26, 60)):
        expected, got = (each.forward(TOKENS[start:end], "all") for each in (plain, fused))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
