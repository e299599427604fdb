"""Fixed buffers say what growing ones say, whatever is forwarded, taken back, stored and brought back."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.graphs.runner import WIDEST
from runtime.engine.graphs.static_cache import Fixed, StaticCache
from runtime.engine.kv_cache import FIRST_CAPACITY, GrowingCache
from runtime.engine.kv_state import KVState
from runtime.engine.transformers_model import TransformersModel
from tests.engine.families import made
from tests.tiny import VOCAB, tiny_network

LIMIT = 600
TOKENS = [int(i) for i in torch.randint(0, VOCAB, (LIMIT,), generator=torch.Generator().manual_seed(4))]
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-4}
"""Of logits that spread over about 10."""


@cache
def pair(family: str) -> tuple[TransformersModel, TransformersModel]:
    """The same weights behind fixed buffers and behind growing ones; windows of 16 tokens in mistral."""
    network = (
        tiny_network(max_position_embeddings=LIMIT)
        if family == "llama"
        else made(family, max_position_embeddings=LIMIT)
    )
    models = [TransformersModel(network, pack=False, native=False, graphs=graphs) for graphs in (True, False)]
    assert isinstance(models[0]._cache, StaticCache)
    assert isinstance(models[1]._cache, GrowingCache)
    return models[0], models[1]


narrow = st.tuples(st.just("forward"), st.integers(1, WIDEST))
wide = st.tuples(st.just("forward"), st.sampled_from([WIDEST + 1, 40, 150]))
crop = st.tuples(st.just("crop"), st.integers(0, 30))
store = st.tuples(st.just("import"), st.integers(1, 60))
steps = st.lists(st.one_of(narrow, narrow, narrow, wide, crop, store), min_size=1, max_size=14)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@settings(max_examples=40, deadline=None)
@given(steps=steps)
def test_logits_are_those_of_a_growing_cache(family: str, steps: list[tuple[str, int]]) -> None:
    fixed, growing = pair(family)
    for model in (fixed, growing):
        model.reset()
    stored: tuple[KVState, KVState] | None = None
    for action, size in steps:
        held = growing.length
        if action == "crop":
            for model in (fixed, growing):
                model.crop(max(0, held - size))
        elif action == "forward" and held + size <= LIMIT:
            part = TOKENS[held : held + size]
            torch.testing.assert_close(fixed.forward(part, "all"), growing.forward(part, "all"), **CLOSE)
        elif action == "import" and stored is not None:
            length = min(size, stored[0].length)
            for model, state in zip((fixed, growing), stored, strict=True):
                model.import_kv([state], length)
        elif action == "import" and held:
            stored = (fixed.export_kv(0, held), growing.export_kv(0, held))
            assert stored[0].shapes == stored[1].shapes
            torch.testing.assert_close(stored[0].buffer, stored[1].buffer, **CLOSE)
        assert fixed.length == growing.length
        assert fixed._cache.length == growing._cache.length


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_buffers_grow_in_the_middle_of_a_text(family: str) -> None:
    fixed, growing = pair(family)
    for model in (fixed, growing):
        model.reset()
        model.forward(TOKENS[: FIRST_CAPACITY - 7], "last")
    for at in range(FIRST_CAPACITY - 7, FIRST_CAPACITY + 33, 5):  # one of them ends behind the border
        part = TOKENS[at : at + 5]
        torch.testing.assert_close(fixed.forward(part, "all"), growing.forward(part, "all"), **CLOSE)


def test_rows_behind_the_text_are_numbers() -> None:
    """A mask cannot hide NaN: nothing times NaN is NaN."""
    cache = StaticCache()
    keys = torch.ones(1, 2, 3, 4)
    cache.update(keys, keys, 0)
    cache.advance_to(3)
    for length in (FIRST_CAPACITY, FIRST_CAPACITY + 1):
        cache.reserve(length)
        held, _ = cache._static[0].first(length)
        assert torch.equal(held[..., :3, :], keys)
        assert float(held[..., 3:, :].abs().sum()) == 0.0
    assert cache.moves == 1


def test_an_interrupted_forward_holds_nothing() -> None:
    cache = StaticCache()
    keys = torch.ones(1, 2, 3, 4)
    cache.update(keys, keys, 0)
    assert cache.length == 0
    cache.advance_to(3)
    place = Fixed(torch.tensor(3), torch.tensor([3, 4]), FIRST_CAPACITY)
    with pytest.raises(KeyboardInterrupt), cache.fixed(place):
        found, _ = cache.update(2 * keys[..., :2, :], keys[..., :2, :], 0)
        assert found.shape[-2] == FIRST_CAPACITY
        assert cache._static[0].get_seq_length() is place.start
        raise KeyboardInterrupt
    assert cache.length == cache.get_seq_length() == 3
    held, _ = cache.update(3 * keys[..., :1, :], keys[..., :1, :], 0)
    assert held[0, 0, :, 0].tolist() == [1.0, 1.0, 1.0, 3.0]
