"""All layers as one call: where a model calls them one behind the other, and nowhere else."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from runtime.engine.native import chain
from runtime.engine.native.blocks import Form, blocks_of
from runtime.engine.native.install import back_to_floats, install
from runtime.engine.native.integers import IntegerLinear, has_integers
from runtime.engine.native.layer import FusedLayer
from runtime.engine.native.library import kernels
from runtime.engine.native.products import EXACT, INTEGERS
from runtime.engine.native.trial import Verdicts
from runtime.engine.transformers_model import TransformersModel
from tests.tiny import SETTINGS, VOCAB, random_model

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler")

WIDE: dict[str, Any] = {**SETTINGS, "head_dim": 16, "hidden_size": 64, "intermediate_size": 96}
TOKENS = [int(i) for i in torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(1))]
PIECES = ((0, 20), (20, 21), (21, 26), (26, 42), (42, 59), (59, 60))


def on_grid() -> PreTrainedModel:
    """A model whose layers become one call."""
    model = random_model("llama", WIDE)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data = blocks_of(weight.detach(), Form.EIGHT).weight()
    return model


def layers_of(model: nn.Module) -> list[FusedLayer]:
    return [part for part in model.modules() if isinstance(part, FusedLayer)]


def said(model: TransformersModel) -> torch.Tensor:
    """Logits of narrow and wide forwards, one of them taken back."""
    model.reset()
    answers = []
    for start, end in PIECES:
        model.forward(TOKENS[:5], "last")
        model.crop(start)
        answers.append(model.forward(TOKENS[start:end], "all"))
    return torch.cat(answers)


@pytest.mark.parametrize("int8", [False, True])
def test_a_chain_says_what_its_layers_say(int8: bool) -> None:
    model = TransformersModel(on_grid(), int8=int8)
    layers = layers_of(model.model)
    assert len(layers) == WIDE["num_hidden_layers"]
    assert len({id(layer.chain) for layer in layers}) == 1 and layers[0].chain is not None
    chained = said(model)
    for layer in layers:
        layer.chain = None
    assert torch.equal(said(model), chained)


def test_the_first_layer_computes_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformersModel(on_grid())
    model.forward(TOKENS[:20], "last")
    for layer in layers_of(model.model):
        monkeypatch.setattr(layer, "_decode", lambda *_: pytest.fail("a layer of its own"))
    model.forward(TOKENS[20:25], "last")


def test_layers_that_hold_unlike_many_tokens_are_called_one_by_one() -> None:
    """As after a forward that was interrupted."""
    model = TransformersModel(on_grid())
    model.forward(TOKENS[:20], "last")
    cache: Any = model._cache
    held = cache.held(1)
    assert held is not None
    held.crop_to(19)
    states = torch.randn(1, 1, WIDE["hidden_size"])
    turn = torch.ones(1, 1, WIDE["head_dim"]), torch.zeros(1, 1, WIDE["head_dim"])
    first = layers_of(model.model)[0]
    assert first.chain is not None
    assert first.chain.answer(first, states, turn, cache) is None
    assert [layer.get_seq_length() for layer in cache.layers][:2] == [20, 19]


def test_a_model_that_does_more_between_its_layers_has_no_chain() -> None:
    model = on_grid()
    body: Any = model.model
    install(model)
    assert layers_of(model)[0].chain is not None

    class Louder(type(body)):  # type: ignore[misc]
        @functools.wraps(type(body).forward)
        def forward(self, **arguments: Any) -> Any:
            hooks = [layer.register_forward_hook(lambda _, __, states: states * 1.5) for layer in self.layers]
            try:
                return super().forward(**arguments)
            finally:
                for hook in hooks:
                    hook.remove()

    body.__class__ = Louder
    assert chain.chain_layers(model, Verdicts()) == 0
    assert all(layer.chain is None for layer in layers_of(model))


def test_what_comes_between_layers_later_is_refused() -> None:
    """The chain has moved all caches on: a layer that computed for itself would add its tokens twice."""
    model = TransformersModel(on_grid())
    model.forward(TOKENS[:20], "last")
    hook = layers_of(model.model)[0].register_forward_hook(lambda _, __, states: states * 1.5)
    with pytest.raises(RuntimeError, match="something came between"):
        model.forward(TOKENS[20:25], "last")
    hook.remove()
    assert model.length == model._cache.length == 20
    expected = TransformersModel(on_grid())
    expected.forward(TOKENS[:20], "last")
    assert torch.equal(model.forward(TOKENS[20:25], "all"), expected.forward(TOKENS[20:25], "all"))


def test_a_forward_that_is_broken_off_between_layers_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformersModel(on_grid())
    expected = said(model)
    model.reset()
    model.forward(TOKENS[:20], "last")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("between layers")

    with monkeypatch.context() as patch:
        patch.setattr(layers_of(model.model)[1], "forward", interrupted)
        with pytest.raises(KeyboardInterrupt, match="between layers"):
            model.forward(TOKENS[20:25], "last")
    assert model.length == model._cache.length == 20
    assert torch.equal(said(model), expected)


def test_two_threads_decode_on_two_models() -> None:
    models = [TransformersModel(on_grid()) for _ in range(2)]
    expected = said(models[0])
    with ThreadPoolExecutor(2) as pool:
        for answers in pool.map(lambda model: [said(model) for _ in range(5)], models):
            assert all(torch.equal(answer, expected) for answer in answers)


def test_every_list_of_layers_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of one is not that of another that the same module holds."""
    model = on_grid()
    install(model)
    layers = layers_of(model)
    body: Any = model.model
    body.other = nn.ModuleList(layers)
    tried: list[nn.Module] = []

    def answers(owner: nn.Module, _: object) -> list[torch.Tensor]:
        tried.append(owner)
        return [torch.zeros(1)]

    monkeypatch.setattr(chain, "_tried", answers)
    assert chain.chain_layers(model, Verdicts()) == 2
    assert len(tried) == 4


@pytest.mark.skipif(not has_integers(), reason="no AVX-512 VNNI")
def test_a_chain_follows_its_layers_back_to_floats() -> None:
    floats, integers = on_grid(), on_grid()
    install(floats, EXACT)
    install(integers, INTEGERS)
    back_to_floats(integers)
    assert not any(isinstance(part, IntegerLinear) for part in integers.modules())
    expected, got = (said(TransformersModel(model, native=False)) for model in (floats, integers))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
