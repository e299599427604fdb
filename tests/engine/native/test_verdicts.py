"""Drafts that differ in nothing but their weights are tried once, and a draft that nobody holds is gone at once."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from runtime.engine.draft_file import DraftHeader, save_draft
from runtime.engine.draft_net import DraftNet, draft_config
from runtime.engine.kv_cache import GrowingCache
from runtime.engine.loaded_draft import load_draft
from runtime.engine.native import trial
from runtime.engine.native.install import usable
from runtime.engine.native.products import EXACT, INTEGERS, Products
from runtime.engine.native.trial import Verdicts, verdicts_of
from tests.engine.native.test_chain import WIDE
from tests.engine.test_native import cut, normal
from tests.tiny import random_model

pytestmark = pytest.mark.skipif(not usable(), reason="there are no compiled kernels here")


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    verdicts_of.cache_clear()


def write_draft(path: Path, seed: int) -> Path:
    source = random_model("llama", WIDE)
    net = cut(source)
    torch.manual_seed(seed)
    weights = {name: torch.randn_like(tensor) for name, tensor in net.weights().items()}
    save_draft(path, DraftHeader("cut", "generalist", "", draft_config(source, 2), {}), net.vocab.int(), weights)
    return path


def names(net: DraftNet) -> set[str]:
    return {type(part).__name__ for part in net.modules()}


def answers(net: DraftNet) -> torch.Tensor:
    with torch.inference_mode():
        cache = GrowingCache()
        parts = [net(normal(1, 9, 64)[:, start:end], cache) for start, end in ((0, 4), (4, 5), (5, 9))]
        return torch.cat(parts, dim=1)


@pytest.mark.parametrize("products", [EXACT, INTEGERS], ids=["floats", "integers"])
def test_a_second_draft_is_replaced_as_the_first_without_a_trial(
    products: Products, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write_draft(tmp_path / "first", 1), write_draft(tmp_path / "second", 2)
    alone = load_draft(second, products=products).net
    verdicts_of.cache_clear()
    load_draft(first, products=products)

    def refused(*arguments: object) -> None:
        raise AssertionError("tried again")

    monkeypatch.setattr(trial.Trial, "__init__", refused)
    monkeypatch.setattr("runtime.engine.native.install.answer_of", refused)
    monkeypatch.setattr("runtime.engine.native.chain._tried", refused)
    net = load_draft(second, products=products).net
    assert names(net) == names(alone) and "FusedLayer" in names(net)
    assert torch.equal(answers(net), answers(alone))


def test_what_was_found_wrong_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_draft(tmp_path / "draft", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.engine.native.install.agree", lambda got, expected: False)
        assert "GatedMLP" not in names(load_draft(path).net)
    assert "GatedMLP" not in names(load_draft(path).net)
    verdicts_of.cache_clear()
    assert "GatedMLP" in names(load_draft(path).net)


def test_every_module_and_kind_has_a_verdict_of_its_own() -> None:
    verdicts = Verdicts()
    assert verdicts.of("a")("norm", lambda: True)
    assert not verdicts.of("b")("norm", lambda: False)
    assert not verdicts.of("a")("layer", lambda: False)
    assert verdicts.of("a")("norm", lambda: False), "it was tried"


def test_a_draft_that_nobody_holds_is_gone_at_once(tmp_path: Path) -> None:
    path = write_draft(tmp_path / "draft", 1)
    draft = load_draft(path)
    answers(draft.net)
    gone = weakref.ref(draft.net.head)
    layers = [weakref.ref(layer) for layer in draft.net.modules()]
    gc.disable()
    try:
        del draft
        assert gone() is None and not any(layer() is not None for layer in layers), "without a search for garbage"
    finally:
        gc.enable()
