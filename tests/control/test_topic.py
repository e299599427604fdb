"""The topic predictor while decoding: compiled code predicts what numpy does, bit for bit."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.control.topic import Floats, TopicPredictor
from runtime.engine.native import decisions

RNG = np.random.default_rng(0)
VOCAB, WINDOW, NAMES = 60, 6, ("one", "two", "three")
SCORES, SHIFT = (RNG.normal(0.3, 0.5, (VOCAB, 3)).astype(np.float32) for _ in range(2))
BIAS = np.array([0.1, -0.2, 0.0], dtype=np.float32)


def predictor(order: str = "C") -> TopicPredictor:
    """As it is made, or as it is loaded: the columns of the file one by one."""
    scores = np.asfortranarray(SCORES) if order == "F" else SCORES
    return TopicPredictor(scores, BIAS, WINDOW, NAMES, SHIFT)


def plainly(tokens: Sequence[int]) -> Floats:
    rows = SCORES[list(tokens[-WINDOW:])]
    mean: Floats = np.clip(BIAS + rows.mean(axis=0), 0.0, 1.0)
    return mean


@pytest.mark.parametrize("order", ["C", "F"])
@given(tokens=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=15))
def test_it_is_the_mean_of_the_last_tokens_rows(order: str, tokens: list[int]) -> None:
    predicted = predictor(order).predict(tokens)
    assert predicted.dtype == np.float32
    assert predicted.tobytes() == plainly(tokens).tobytes() == predictor(order).predict(tuple(tokens)).tobytes()


def test_without_compiled_code_numpy_predicts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "kernels", lambda: None)
    for length in range(1, 12):
        tokens = RNG.integers(0, VOCAB, length).tolist()
        assert predictor().predict(tokens).tobytes() == plainly(tokens).tobytes()


def test_predictions_are_the_callers_own() -> None:
    topic = predictor()
    first = topic.predict([1, 2])
    kept = first.copy()
    topic.predict([3])
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("token", [VOCAB, VOCAB + 10**9])
def test_a_token_without_a_row_is_refused(token: int) -> None:
    with pytest.raises(IndexError):
        predictor().predict([1, token])


def test_it_can_be_sent_to_another_process() -> None:
    topic = predictor()
    wanted = topic.predict([1, 2, 3])
    again = pickle.loads(pickle.dumps(topic))
    assert np.array_equal(again.predict([1, 2, 3]), wanted) and again.drafts == NAMES
