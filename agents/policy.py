"""The residual policy: logits = a heuristic's scores + a network whose last layer starts at zero.

An ordinary network starts with random drafts, which lose time, and plain decoding is a safe local optimum
(``docs/experiments.md`` has both curves). Starting from the heuristic, everything learned is a gain over it. The same
networks serve MaskablePPO (sb3-contrib) and PPO (stable-baselines3).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from agents.prior import HeuristicPrior
from agents.round_table import RoundTable
from runtime.control.observation import G, P, scales


class ScaledObservation(BaseFeaturesExtractor):
    """Observation divided by its table's scales, then the prior's scores behind it.

    Args:
        observation_space: Raw observation.
        table: Round statistics for the prior; None = no prior (the plain network).
        prior: Keyword arguments of ``HeuristicPrior``.
    """

    scale: Tensor

    def __init__(
        self, observation_space: spaces.Box, table: RoundTable | None, prior: dict[str, float] | None = None
    ) -> None:
        size = int(observation_space.shape[0])
        module = None if table is None else HeuristicPrior(table, **(prior or {}))
        super().__init__(observation_space, size + (module.n_logits if module else 0))
        self.register_buffer("scale", torch.as_tensor(scales((size - G) // P)))
        self.prior = module

    def forward(self, observations: Tensor) -> Tensor:
        """(batch, D) raw to (batch, D + n_logits)."""
        scaled = observations / self.scale
        return scaled if self.prior is None else torch.cat([scaled, self.prior(observations)], dim=1)


class SplitMlp(nn.Module):
    """Two networks on the features; the policy's latent carries the prior's scores on to the head.

    Attributes:
        latent_dim_pi: Width of the policy latent: hidden width + scores.
        latent_dim_vf: Width of the value latent.
    """

    def __init__(self, features: int, scores: int, widths: list[int]) -> None:
        super().__init__()
        self.scores = scores
        self.policy_net = _mlp(features, widths)
        self.value_net = _mlp(features, widths)
        self.latent_dim_pi, self.latent_dim_vf = widths[-1] + scores, widths[-1]

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features to (policy latent, value latent)."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        """(batch, features) to (batch, hidden + scores)."""
        hidden: Tensor = self.policy_net(features)
        return torch.cat([hidden, features[:, features.shape[1] - self.scores :]], dim=1) if self.scores else hidden

    def forward_critic(self, features: Tensor) -> Tensor:
        """(batch, features) to (batch, hidden)."""
        hidden: Tensor = self.value_net(features)
        return hidden


def _mlp(features: int, widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip([features, *widths], widths, strict=False):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers)


class ResidualHead(nn.Module):
    """Scores of the prior plus a linear correction that starts at zero."""

    def __init__(self, hidden: int, scores: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.correction = nn.Linear(hidden, scores)
        nn.init.zeros_(self.correction.weight)
        nn.init.zeros_(self.correction.bias)

    def forward(self, latent: Tensor) -> Tensor:
        """(batch, hidden + scores) to logits (batch, scores)."""
        correction: Tensor = self.correction(latent[:, : self.hidden])
        return latent[:, self.hidden :] + correction


class _ResidualMixin:
    """Replaces SB3's network and action head; everything else stays SB3's."""

    def _build_mlp_extractor(self) -> None:
        policy = cast(Any, self)
        prior = policy.features_extractor.prior
        policy.mlp_extractor = SplitMlp(policy.features_dim, prior.n_logits if prior else 0, list(policy.net_arch))

    def _build(self, lr_schedule: Any) -> None:
        policy = cast(Any, self)
        super()._build(lr_schedule)  # type: ignore[misc]
        prior = policy.features_extractor.prior
        if prior is not None:
            policy.action_net = ResidualHead(policy.mlp_extractor.latent_dim_vf, prior.n_logits)
            policy.optimizer = policy.optimizer_class(policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs)


class MaskableResidualPolicy(_ResidualMixin, MaskableActorCriticPolicy):
    """For MaskablePPO."""


class ResidualPolicy(_ResidualMixin, ActorCriticPolicy):
    """For PPO without masks."""
