"""How sure a ratio of speeds is: a paired bootstrap over prompts that both sides answered.

The same prompts are drawn for both sides, with replacement, and the ratio of total tokens per second is taken anew for
each draw; the middle 95% of these ratios are the interval (percentile method). With few prompts it is too narrow.

Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RESAMPLES = 5000
LEVEL = 0.95

Floats = npt.NDArray[np.float64]


class Ratio(NamedTuple):
    """A ratio of speeds with its interval; a single prompt has none."""

    value: float
    interval: tuple[float, float] | None


class Work(NamedTuple):
    """What one side did, by prompt: tokens written and seconds taken, both of shape (prompts,), positive."""

    tokens: Floats
    seconds: Floats


def ratio(over: Work, under: Work, resamples: int = RESAMPLES, seed: int = 0) -> Ratio:
    """(Total tokens/s of ``over``) / (total tokens/s of ``under``).

    Args:
        over: Numerator.
        under: Denominator, the same prompts in the same order.
        resamples: Draws.
        seed: Of the draws; the same seed draws the same prompts for every pair.
    """
    rows = np.stack([over.tokens, over.seconds, under.tokens, under.seconds])  # (4, prompts)
    prompts = rows.shape[1]
    value = float(_of_sums(rows.sum(axis=1)))
    if prompts == 1:
        return Ratio(value, None)
    draws = np.random.default_rng(seed).integers(prompts, size=(resamples, prompts))
    tail = 50.0 * (1.0 - LEVEL)
    low, high = np.percentile(_of_sums(rows[:, draws].sum(axis=2)), [tail, 100.0 - tail])
    return Ratio(value, (float(low), float(high)))


def _of_sums(sums: Floats) -> Floats:
    speeds: Floats = (sums[0] / sums[1]) / (sums[2] / sums[3])
    return speeds
