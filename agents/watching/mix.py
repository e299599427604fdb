"""What was decided in a rollout, as shares: read off its actions and observations, all at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.control.observation import GLOBAL_INDEX
from runtime.core import GAMMAS, STOP_LEVELS

DIMENSIONS = 5
"""Of an action, see ``runtime.control.action``."""


def decision_mix(observations: npt.NDArray[np.float32], actions: npt.NDArray[np.int64]) -> dict[str, float]:
    """Shares of every kind of decision among those where it is a choice.

    Args:
        observations: Raw, shape (decisions, D).
        actions: Shape (decisions, 5).

    Returns:
        Of the rounds: ``plain`` and ``gamma_<length>``. Of the rounds with a draft: ``stop_<level>``. Of the decisions
        where prefetching may be decided: ``prefetch``. Of the admissions: ``reuse``. Of the completions: ``retain``.
        A share of nothing is left out.
    """
    admit, decode, complete, may = (
        observations[:, GLOBAL_INDEX[name]] > 0.5
        for name in ("phase_admit", "phase_decode", "phase_complete", "may_prefetch")
    )
    speculate, stop, prefetch, kv = (actions[:, column] for column in range(4))
    shares: dict[str, float] = {}
    rounds = speculate[decode]
    if rounds.size:
        shares["plain"] = float(np.mean(rounds == 0))
        for index, gamma in enumerate(GAMMAS):
            shares[f"gamma_{gamma}"] = float(np.mean((rounds > 0) & ((rounds - 1) % len(GAMMAS) == index)))
    stops = stop[decode & (speculate > 0)]
    if stops.size:
        shares |= {f"stop_{level:g}": float(np.mean(stops == index)) for index, level in enumerate(STOP_LEVELS)}
    for name, chosen in (("prefetch", prefetch[may] > 0), ("reuse", kv[admit] > 0), ("retain", kv[complete] > 0)):
        if chosen.size:
            shares[name] = float(np.mean(chosen))
    return shares
