"""Observations written by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runtime.control.action import ActionCodec
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, Observation, P
from runtime.core import GAMMAS, Decision, Outcome, Phase, Round
from tests.factories import NAMES

N = len(NAMES)


def see(
    phase: Phase = Phase.DECODE, drafts: Mapping[str, tuple[float, ...]] | None = None, **values: float
) -> Observation:
    """An observation of the made-up zoo: everything legal that its residency allows, all else 0.

    Args:
        phase: What is to be decided.
        drafts: Per-draft features by name, one value a draft; without ``resident`` all are.
        values: Global features; ``room_tokens`` is 100 unless given, the verify costs are those of made-up costs.
    """
    codec = ActionCodec(N)
    vector = np.zeros(G + N * P, dtype=np.float32)
    costs = {f"verify_ratio_{gamma}": 1.0 + 0.1 * gamma for gamma in GAMMAS}
    for name, value in {"room_tokens": 100.0, **costs, **values}.items():
        vector[GLOBAL_INDEX[name]] = value
    rows = vector[G:].reshape(N, P)
    for name, column in {"resident": (1.0,) * N, "weightless": (0.0, 0.0, 1.0), **(drafts or {})}.items():
        rows[:, DRAFT_INDEX[name]] = column
    mask = np.ones(codec.offsets[-1], dtype=np.bool_)
    for draft in range(N):
        resident = rows[draft, DRAFT_INDEX["resident"]] > 0
        mask[1 + draft * len(GAMMAS) : 1 + (draft + 1) * len(GAMMAS)] = resident and phase is Phase.DECODE
        mask[codec.offsets[2] + 1 + draft] = not resident and phase is not Phase.COMPLETE
    return Observation(phase, vector, mask)


def outcome(drafted: int, accepted: int, draft: int | None = 0) -> Outcome:
    """What a round led to."""
    done = Round(tuple(range(accepted + 1)), drafted, accepted, drafted)
    return Outcome(Phase.DECODE, Decision(draft=draft), 0.1, 0.1, 0.0, done, done.tokens)
