"""The distribution over the five dimensions of a decision: one masked log-softmax for all of them.

sb3-contrib builds five distribution objects a step, each with its own normalisation, done again for the mask. Here
mask, entropy and log-probability are one operation each over all dimensions; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from torch import Tensor, nn

from agents.trimming import Trimming

FORBIDDEN = -1e8
"""Logit of an illegal value."""
UNLIKELY = -80.0
"""Logarithms below are read as this one: exponentials that underflow are ten times as slow."""
TINY = 1e-30


class Choices(MaskableDistribution):
    """Independent choices, one a dimension, that MaskablePPO, PPO and RecurrentPPO draw from.

    Args:
        nvec: Sizes of the dimensions.
        trimming: What of the legal values may be drawn at all; None = all.
    """

    def __init__(self, nvec: Sequence[int], trimming: Trimming | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes = [int(size) for size in nvec]
        self._trimming = trimming
        self._starts = torch.tensor([0, *accumulate(self.sizes)][:-1])

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        return nn.Linear(latent_dim, sum(self.sizes))

    def proba_distribution(self, action_logits: Tensor) -> Choices:
        self._raw = action_logits.view(-1, sum(self.sizes))
        self._set(None)
        return self

    def apply_masking(self, masks: Tensor | np.ndarray[Any, np.dtype[np.bool_]] | None) -> None:
        self._set(None if masks is None else torch.as_tensor(masks).view(self._raw.shape))

    def _set(self, mask: Tensor | None) -> None:
        if self._trimming is not None:
            everything = torch.ones_like(self._raw, dtype=torch.bool)
            mask = self._trimming(everything if mask is None else mask.bool())
        # Added, not put in its place: the gradient passes without a mask of its own.
        self._logits = self._raw if mask is None else self._raw + (mask.to(self._raw.dtype) - 1.0) * -FORBIDDEN
        self._known: Tensor | None = None

    @property
    def log_probabilities(self) -> Tensor:
        """Of every value of every dimension, (batch, sum(nvec))."""
        if self._known is None:
            parts = [part.log_softmax(dim=1) for part in torch.split(self._logits, self.sizes, dim=1)]
            self._known = torch.cat(parts, dim=1)
        return self._known

    def log_prob(self, actions: Tensor) -> Tensor:
        places = actions.view(-1, len(self.sizes)).long() + self._starts
        return self.log_probabilities.gather(1, places).sum(dim=1)

    def shortfall(self, actions: Tensor) -> Tensor:
        """Score of the chosen values less that of the best legal ones, summed over dimensions: at most 0; (batch,)."""
        best = sum(part.amax(dim=1) for part in torch.split(self._logits, self.sizes, dim=1))
        places = actions.view(-1, len(self.sizes)).long() + self._starts
        return self._logits.gather(1, places).sum(dim=1) - best

    def entropy(self) -> Tensor:
        known = self.log_probabilities
        return -(known.clamp_min(UNLIKELY).exp() * known).sum(dim=1)  # a masked value's part is far below rounding

    def sample(self) -> Tensor:
        """Exponential races: the value with the largest probability / exponential noise wins."""
        known = self.log_probabilities
        return self._best(known.clamp_min(UNLIKELY).exp() / torch.empty_like(known).exponential_().clamp_min(TINY))

    def mode(self) -> Tensor:
        return self._best(self._logits)

    def _best(self, values: Tensor) -> Tensor:
        return torch.stack([part.argmax(dim=1) for part in torch.split(values, self.sizes, dim=1)], dim=1)

    def actions_from_params(self, action_logits: Tensor, deterministic: bool = False) -> Tensor:
        return self.proba_distribution(action_logits).get_actions(deterministic=deterministic)

    def log_prob_from_params(self, action_logits: Tensor) -> tuple[Tensor, Tensor]:
        actions = self.actions_from_params(action_logits)
        return actions, self.log_prob(actions)
