"""Paired bootstrap: how sure a ratio of speeds is, over streams that both controllers served.

The same streams are drawn for both sides, with replacement; the ratio of total tokens per second is taken anew for each
draw; the middle 95% of these ratios are the interval (percentile method). With very few streams it is too narrow, with
one stream it is a point.

Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
LEVEL = 0.95


class Interval(NamedTuple):
    """A ratio with its interval."""

    value: float
    low: float
    high: float


class Speeds(NamedTuple):
    """What one controller did, by stream: tokens committed and seconds taken, both of shape (streams,)."""

    tokens: Sequence[float]
    seconds: Sequence[float]


def ratio_interval(
    over: Speeds, under: Speeds, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval:
    """Interval of (total tokens/s of ``over``) / (total tokens/s of ``under``).

    Args:
        over: Numerator.
        under: Denominator, the same streams in the same order.
        resamples: Draws.
        seed: Of the draws; the same seed draws the same streams for every pair.
        level: Part of the draws that the interval covers.

    Raises:
        ValueError: If there is no stream, the sides differ in length, or a time or token count is not positive.
    """
    lengths = {len(values) for values in (*over, *under)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError("expected at least one stream of each side, and as many of one as of the other")
    table = np.array([over.tokens, over.seconds, under.tokens, under.seconds], dtype=np.float64)  # (4, streams)
    if not (table > 0.0).all():
        raise ValueError("expected positive tokens and seconds in every stream: was a stream left empty?")
    streams = table.shape[1]
    value = float(_ratio(table.sum(axis=1)))
    draws = np.random.default_rng(seed).integers(streams, size=(resamples, streams))
    ratios = _ratio(table[:, draws].sum(axis=2))
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(ratios, [tail, 100.0 - tail])
    return Interval(value, float(low), float(high))


def _ratio(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    ratio: npt.NDArray[np.float64] = (sums[0] / sums[1]) / (sums[2] / sums[3])
    return ratio
