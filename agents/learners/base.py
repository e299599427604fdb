"""What the algorithms that learn from rollouts share: schedules, running normalisation, features computed once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

from agents.features import ScaledObservation
from agents.schedules import Schedule

CHUNK = 4096
"""Observations whose features are computed together."""


class FromRollouts:
    """Mixin for on-policy algorithms of stable-baselines3.

    * The entropy bonus follows a schedule, as the learning rate does.
    * Features have no weights: they are computed once for an update, not in every pass over the rollout.
    * Running statistics take a rollout in *after* its update, so that an update reads the features that acted.

    Args:
        entropy: Schedule of the entropy bonus.
        threads: CPU threads of an update; 0 = as many as are set.
    """

    once = True
    """Whether the rollout's buffer may hold features in place of observations during an update."""

    def __init__(self, *args: Any, entropy: Schedule, threads: int = 0, **kwargs: Any) -> None:
        self.entropy, self.update_threads = entropy, threads
        super().__init__(*args, ent_coef=entropy.start, **kwargs)  # type: ignore[call-arg]

    def train(self) -> None:
        """One update from the rollout."""
        learner = cast(Any, self)
        learner.ent_coef = self.entropy(learner._current_progress_remaining)
        buffer, extractor = learner.rollout_buffer, learner.policy.features_extractor
        raw = buffer.observations
        with threads(self.update_threads):
            if self.once:
                buffer.observations = features_of(extractor, raw)
            extractor.prepared = self.once
            try:
                super().train()  # type: ignore[misc]
            finally:
                extractor.prepared, buffer.observations = False, raw
        learner.logger.record("train/entropy_bonus", learner.ent_coef)
        extractor.learn_scales(raw)


@torch.no_grad()
def features_of(
    extractor: ScaledObservation, observations: np.ndarray[Any, np.dtype[np.float32]]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Raw observations (…, D) to features (…, features)."""
    flat = observations.reshape(-1, observations.shape[-1])
    features = np.empty((len(flat), extractor.features_dim), dtype=np.float32)
    for start in range(0, len(flat), CHUNK):
        part = slice(start, start + CHUNK)
        features[part] = extractor(torch.from_numpy(flat[part])).numpy()
    return features.reshape(*observations.shape[:-1], -1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """As many CPU threads for a while; 0 = no change."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
