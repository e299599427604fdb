"""What the network reads: the observation, normalised, and the prior's scores behind it.

Normalisation is part of the policy, not of an environment around it: its statistics are buffers of this module, so a
checkpoint and an exported graph hold them, and an evaluation cannot move them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from agents.prior import HeuristicPrior
from agents.round_table import RoundTable
from runtime.control.observation import G, P, scales

NARROWEST = 0.05
"""A running deviation is at least this share of the table's scale: a value that never moved may still do so."""
WIDEST = 10.0
"""Running normalisation clips to so many deviations."""


class ScaledObservation(BaseFeaturesExtractor):
    """Observation in units of the table's scales or of running deviations, then the prior's scores.

    All drafts share their features' statistics, so that no draft has a place of its own.

    Args:
        observation_space: Raw observation.
        table: Round statistics for the prior; None = no prior (the plain network).
        prior: Keyword arguments of ``HeuristicPrior``.
        running: Whether statistics are learned from rollouts (``learn_scales``).

    Attributes:
        n_drafts: Drafts of the zoo.
        prepared: Whether ``forward`` is given features that were computed before.
    """

    table_scale: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(
        self,
        observation_space: spaces.Box,
        table: RoundTable | None,
        prior: dict[str, float] | None = None,
        running: bool = False,
    ) -> None:
        size = int(observation_space.shape[0])
        module = None if table is None else HeuristicPrior(table, **(prior or {}))
        super().__init__(observation_space, size + (module.n_logits if module else 0))
        self.n_drafts = (size - G) // P
        self.running, self.prepared = running, False
        self.register_buffer("table_scale", torch.as_tensor(scales(1)))  # (G + P,), as are the others
        self.register_buffer("mean", torch.zeros(G + P))
        self.register_buffer("variance", self.table_scale.square())
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.prior = module

    @property
    def n_scores(self) -> int:
        """Length of the prior's scores behind the observation."""
        return self.prior.n_logits if self.prior else 0

    def forward(self, observations: Tensor) -> Tensor:
        """(batch, D) raw to (batch, D + n_scores)."""
        if self.prepared:
            return observations
        scaled = self.normalised(observations)
        return scaled if self.prior is None else torch.cat([scaled, self.prior(observations)], dim=1)

    def normalised(self, observations: Tensor) -> Tensor:
        """(batch, D) raw to (batch, D) in units of scales or deviations."""
        if not self.running:
            return observations / self._everywhere(self.table_scale)
        deviation = torch.maximum(self.variance.sqrt(), NARROWEST * self.table_scale)
        scaled = (observations - self._everywhere(self.mean)) / self._everywhere(deviation)
        return scaled.clamp(-WIDEST, WIDEST)

    def _everywhere(self, values: Tensor) -> Tensor:
        """(G + P,) to (D,): the drafts' part once for every draft."""
        return torch.cat([values[:G], values[G:].repeat(self.n_drafts)])

    @torch.no_grad()
    def learn_scales(self, observations: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Take raw observations, (…, D), into the running statistics; the first replace the table's scales.

        Source: Chan et al. 1979, parallel variance.
        """
        if not self.running:
            return
        flat = np.asarray(observations, dtype=np.float64).reshape(-1, G + P * self.n_drafts)
        rows = flat[:, G:].reshape(-1, P)
        mean = torch.as_tensor(np.concatenate([flat[:, :G].mean(axis=0), rows.mean(axis=0)]))
        variance = torch.as_tensor(np.concatenate([flat[:, :G].var(axis=0), rows.var(axis=0)]))
        before = float(self.count.item())
        share = len(flat) / (before + len(flat))
        gap = mean - self.mean.double()
        mixed = (1.0 - share) * self.variance.double() + share * variance + share * (1.0 - share) * gap.square()
        self.mean.copy_(self.mean.double() + share * gap)
        self.variance.copy_(mixed)
        self.count.fill_(before + len(flat))
