"""What a zoo learns from traces: calibration and the topic predictor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.trace_code import encode
from envs.traces import RUN_ON, DraftTrace, Trace
from envs.zoo.fit import TOPIC_WINDOW, calibrations, expected_acceptance, fit_calibration, fit_topic
from runtime.control.topic import TopicPredictor
from runtime.errors import UserError

VOCAB, WIDTH = 40, 6
NAMES = ("even", "odd", "lookup")
Bools = npt.NDArray[np.bool_]


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-x))


# -- calibration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.5, -1.0), (1.7, 0.8), (0.2, 1.5)])
def test_calibration_recovers_what_made_the_data(slope: float, offset: float) -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(0.0, 2.0, 40_000)
    match = rng.random(len(logit)) < sigmoid(slope * logit + offset)
    assert fit_calibration(sigmoid(logit), match) == pytest.approx((slope, offset), abs=0.06)


@pytest.mark.parametrize("match", [True, False])
def test_calibration_of_one_sided_evidence_is_finite(match: bool) -> None:
    slope, offset = fit_calibration(np.linspace(0.0, 1.0, 50), np.full(50, match))
    assert np.isfinite([slope, offset]).all()
    assert (sigmoid(np.array([slope * 0.0 + offset]))[0] > 0.9) == match


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=60))
def test_calibration_is_always_finite(evidence: list[tuple[float, bool]]) -> None:
    probability, match = (np.array(column) for column in zip(*evidence, strict=True))
    assert np.isfinite(fit_calibration(probability, match)).all()


# -- the topic predictor -----------------------------------------------------------------------------------------


def draft_trace(match: Bools) -> DraftTrace:
    start = np.concatenate([[0], np.where(match, 0, RUN_ON).cumsum()]).astype(np.int32)
    return DraftTrace(match, encode(np.where(match, 0.8, 0.3)), encode(np.full(int(start[-1]), 0.5)), start)


def topic_traces(seed: int = 0) -> list[Trace]:
    """Texts of even tokens, where draft ``even`` is mostly right, and of odd tokens, where ``odd`` is."""
    rng = np.random.default_rng(seed)
    traces = []
    for index in range(20):
        odd = index % 2
        ids = (2 * rng.integers(0, VOCAB // 2, 100) + odd).tolist()
        drafts = tuple(draft_trace(rng.random(60) < (0.9 if d == odd else 0.1)) for d in range(2))
        traces.append(
            Trace(f"t{index}", "d", "train", "single", f"t{index}", 0, tuple(ids[:40]), tuple(ids[40:]), drafts)
        )
    return traces


def embedding() -> npt.NDArray[np.float32]:
    """Random, but for one direction that tells even from odd."""
    table = np.random.default_rng(1).normal(0.0, 0.3, (VOCAB, WIDTH)).astype(np.float32)
    table[:, 0] = np.where(np.arange(VOCAB) % 2, 1.0, -1.0)
    return table


def fitted() -> TopicPredictor:
    return fit_topic(topic_traces(), [0, 1, None], NAMES, [0.5, 0.5, 0.25], embedding())


def test_two_topics_are_told_apart() -> None:
    topic = fitted()
    assert topic.drafts == NAMES and topic.window == TOPIC_WINDOW
    even, odd = topic.predict(range(0, VOCAB, 2)), topic.predict(range(1, VOCAB, 2))
    assert even[0] > 0.7 and even[1] < 0.3
    assert odd[1] > 0.7 and odd[0] < 0.3
    assert even[2] == odd[2] == pytest.approx(0.25)  # the draft without a column keeps its default
    mixed = topic.predict(range(VOCAB))
    assert even[0] > mixed[0] > odd[0]


def test_order_of_the_columns_is_the_zoos() -> None:
    swapped = fit_topic(topic_traces(), [1, None, 0], ("odd", "lookup", "even"), [0.5, 0.25, 0.5], embedding())
    np.testing.assert_allclose(swapped.scores[:, [2, 0, 1]], fitted().scores, atol=1e-6)


def test_expected_acceptance_is_the_share_of_right_guesses() -> None:
    traces = topic_traces()
    assert expected_acceptance(traces, 2) == pytest.approx([0.5, 0.5], abs=0.05)
    for slope, offset in calibrations(traces, 2):
        assert slope * np.log(0.8 / 0.2) + offset > 0 > slope * np.log(0.3 / 0.7) + offset


@st.composite
def predictors(draw: st.DrawFn) -> TopicPredictor:
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    names = NAMES[: draw(st.integers(1, 3))]
    scores = rng.normal(0.0, 0.4, (VOCAB, len(names))).astype(np.float32)
    bias = rng.random(len(names)).astype(np.float32)
    return TopicPredictor(scores, bias, draw(st.integers(1, 12)), names, np.zeros_like(scores))


@given(predictors(), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), st.data())
def test_predicting_everywhere_is_predicting_at_each_position(
    topic: TopicPredictor, tokens: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, len(tokens)))
    everywhere = topic.predict_all(tokens, start)
    assert everywhere.shape == (len(tokens) - start + 1, len(topic.drafts))
    for row, n in enumerate(range(start, len(tokens) + 1)):
        np.testing.assert_allclose(everywhere[row], topic.predict(tokens[:n]), atol=1e-6)
    assert (everywhere >= 0.0).all() and (everywhere <= 1.0).all()


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    topic, path = fitted(), tmp_path / "topic.safetensors"
    topic.save(path)
    loaded = TopicPredictor.load(path, NAMES)
    assert (loaded.window, loaded.drafts) == (topic.window, topic.drafts)
    np.testing.assert_allclose(loaded.scores, topic.scores, atol=1e-3, rtol=1e-3)  # kept in fp16
    np.testing.assert_array_equal(loaded.bias, topic.bias)
    loaded.save(path)
    np.testing.assert_array_equal(TopicPredictor.load(path).scores, loaded.scores)
    assert [file.name for file in tmp_path.iterdir()] == ["topic.safetensors"]


def test_a_missing_or_foreign_predictor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a readable topic predictor"):
        TopicPredictor.load(tmp_path / "missing.safetensors")
    fitted().save(tmp_path / "topic.safetensors")
    with pytest.raises(UserError, match="expected a topic predictor of the drafts a, b, got one of the drafts even"):
        TopicPredictor.load(tmp_path / "topic.safetensors", ("a", "b"))
