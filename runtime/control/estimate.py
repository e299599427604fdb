"""What acceptance to expect of every draft: evidence while it is fresh, else what is known without it."""

from __future__ import annotations

import numpy as np

from runtime.control.observation import Floats, Observation


def freshness(observation: Observation, tokens: float) -> Floats:
    """How new the evidence of every draft is: 1 = of the last round, 1/e after ``tokens`` tokens; shape (drafts,)."""
    fresh: Floats = np.exp(observation.per_draft("staleness") / np.float32(-tokens))
    return fresh


def blended(observation: Observation, base: Floats, weight: Floats) -> Floats:
    """Recent share of right guesses, and for the rest ``base``; shape (drafts,).

    Args:
        observation: What is seen.
        base: Acceptance expected without evidence, shape (drafts,).
        weight: Of the evidence, 0 to 1, shape (drafts,).
    """
    expected: Floats = weight * observation.per_draft("acceptance") + (np.float32(1.0) - weight) * base
    return expected
