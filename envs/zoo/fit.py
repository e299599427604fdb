"""What a zoo learns from the traces of its training split: calibration, expected acceptance, topic predictor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from envs.traces import Trace, TraceSet
from runtime.control.topic import TopicPredictor
from runtime.state import EVIDENCE_DECAY

Floats = npt.NDArray[np.float64]
TOPIC_WINDOW = 48
"""Tokens whose mean embedding predicts the topic."""
TOPIC_HORIZON = 24
"""Positions ahead over which the predictor's target, the share of right guesses, is averaged."""
TOPIC_STRIDE = 4
"""Every this many positions are used for fitting."""
NEWTON_STEPS = 25
MOST_HALVINGS = 30
SHIFT_SHRINKAGE = 16.0
"""Positions behind a token that were as usual are added to those seen: rare tokens say little."""


def fit_calibration(probability: Floats, match: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Logistic (Platt) calibration of raw confidences.

    Source: Platt 1999, "Probabilistic outputs for support vector machines"; damped Newton with a small ridge.

    Args:
        probability: Raw confidences, shape (n,).
        match: Whether the guess was right, shape (n,).

    Returns:
        (slope, offset) such that sigmoid(slope * logit(raw) + offset) is the probability of being right.
    """
    p = np.clip(probability, 1e-5, 1.0 - 1e-6)
    inputs = np.stack([np.log(p) - np.log1p(-p), np.ones_like(p)], axis=1)
    start = weights = np.array([1.0, 0.0])

    def loss(at: Floats) -> float:
        scores = inputs @ at
        return float((np.logaddexp(0.0, scores) - match * scores).sum() + 5e-4 * np.square(at - start).sum())

    for _ in range(NEWTON_STEPS):
        fitted = 0.5 + 0.5 * np.tanh(0.5 * (inputs @ weights))
        gradient = inputs.T @ (fitted - match) + 1e-3 * (weights - start)
        curvature = (inputs * (fitted * (1.0 - fitted))[:, None]).T @ inputs + 1e-3 * np.eye(2)
        step, before = np.linalg.solve(curvature, gradient), loss(weights)
        for _ in range(MOST_HALVINGS):  # a full step from far away can lead further away
            if loss(weights - step) <= before:
                weights = weights - step
                break
            step = step / 2.0
    return float(weights[0]), float(weights[1])


def calibrations(traces: Sequence[Trace], drafts: int) -> list[tuple[float, float]]:
    """Calibration of every recorded draft, over all texts."""
    return [
        fit_calibration(
            np.concatenate([t.drafts[d].probability for t in traces]),
            np.concatenate([t.drafts[d].match for t in traces]),
        )
        for d in range(drafts)
    ]


def expected_acceptance(traces: Sequence[Trace], drafts: int) -> list[float]:
    """Share of right guesses of every recorded draft, over all texts."""
    return [float(np.concatenate([t.drafts[d].match for t in traces]).mean()) for d in range(drafts)]


def fit_topic(
    traces: Sequence[Trace],
    columns: Sequence[int | None],
    names: tuple[str, ...],
    defaults: Sequence[float],
    embedding: npt.NDArray[np.float32],
    ridge: float = 3.0,
) -> TopicPredictor:
    """Ridge regression from the mean input embedding of the last tokens to acceptance over the next positions.

    Args:
        traces: Texts of the training split.
        columns: Column in the traces of every draft of the zoo; None for one without weights.
        names: The zoo's drafts.
        defaults: Prediction for drafts without a column.
        embedding: The target's input embedding, shape (vocab, width).
        ridge: Regularisation, in units of the mean squared input.
    """
    inputs, targets = [], []
    recorded = [column for column in columns if column is not None]
    for trace in traces:
        ids = np.array([*trace.prompt_ids, *trace.output_ids])
        match = np.stack([trace.drafts[column].match for column in recorded], axis=1).astype(np.float64)
        sums = np.concatenate([np.zeros((1, embedding.shape[1])), embedding[ids].astype(np.float64).cumsum(0)])
        ahead = np.concatenate([np.zeros((1, len(recorded))), match.cumsum(0)])
        for at in range(0, len(match), TOPIC_STRIDE):
            end = len(trace.prompt_ids) + at
            begin = max(0, end - TOPIC_WINDOW)
            until = min(len(match), at + TOPIC_HORIZON)
            inputs.append((sums[end] - sums[begin]) / (end - begin))
            targets.append((ahead[until] - ahead[at]) / (until - at))
    x, y = np.array(inputs), np.array(targets)
    x_mean, y_mean = x.mean(0), y.mean(0)
    centred = x - x_mean
    penalty = ridge * np.square(centred).sum() / x.shape[1] / len(x) * np.eye(x.shape[1])
    weights = np.linalg.solve(centred.T @ centred + penalty * x.shape[1], centred.T @ (y - y_mean))
    scores = np.zeros((embedding.shape[0], len(names)), dtype=np.float32)
    bias = np.array(defaults, dtype=np.float32)
    places = [index for index, column in enumerate(columns) if column is not None]
    scores[:, places] = embedding @ weights.astype(np.float32)
    bias[places] = (y_mean - x_mean @ weights).astype(np.float32)
    return TopicPredictor(scores, bias, TOPIC_WINDOW, names, fit_shift(traces, columns, embedding.shape[0]))


def fit_shift(traces: Sequence[Trace], columns: Sequence[int | None], vocabulary: int) -> npt.NDArray[np.float32]:
    """How much more often a draft's guess behind each token is right than its recent share of right guesses says.

    Args:
        traces: Texts of the training split.
        columns: Column in the traces of every draft of the zoo; None for one without weights, whose shift is 0.
        vocabulary: Tokens of the target.

    Returns:
        Mean residual, shrunk towards 0 by ``SHIFT_SHRINKAGE``, shape (vocabulary, drafts).
    """
    sums = np.zeros((vocabulary, len(columns)))
    counts = np.full((vocabulary, 1), SHIFT_SHRINKAGE)
    for trace in traces:
        last = np.array([trace.prompt_ids[-1], *trace.output_ids[:-1]])
        np.add.at(counts[:, 0], last, 1.0)
        for place, column in enumerate(columns):
            if column is not None:
                match = trace.drafts[column].match
                np.add.at(sums[:, place], last, match - _recent_share(match))
    shift: npt.NDArray[np.float32] = (sums / counts).astype(np.float32)
    return shift


def _recent_share(match: npt.NDArray[np.bool_]) -> Floats:
    """Share of right guesses before every position, recent ones counting more; it starts at the text's own mean."""
    share, value = np.empty(len(match)), float(match.mean())
    for position, right in enumerate(match):
        share[position] = value
        value = value * EVIDENCE_DECAY + (1.0 - EVIDENCE_DECAY) * float(right)
    return share


def recorded_columns(traces: TraceSet, names: Sequence[str], loadable: Sequence[bool]) -> list[int | None]:
    """Column in the traces of every draft of a zoo; None for one without weights."""
    return [traces.column(name) if has else None for name, has in zip(names, loadable, strict=True)]
