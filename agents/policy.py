"""The residual policy: logits = a heuristic's scores + a network whose last layer starts at zero.

An ordinary network starts with random drafts, which lose time, and plain decoding is a safe local optimum
(``docs/experiments.md`` has both curves). Starting from the heuristic, everything learned is a gain over it. The same
networks serve MaskablePPO and RecurrentPPO (sb3-contrib), PPO (stable-baselines3) and Q-learning.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import Tensor, nn

from agents.choices import Choices
from agents.equivariant import EquivariantHead, EquivariantNet
from agents.trimming import Trimming


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
        return latent.detach()[:, self.hidden :] + correction  # nothing learns behind the prior


class _ResidualMixin:
    """Replaces SB3's network, action head and distribution; everything else stays SB3's.

    Args:
        network: ``flat`` or ``equivariant``.
        trimming: Keyword arguments of ``Trimming``; None = all actions.
    """

    trimming: Trimming | None

    def __init__(
        self, *args: Any, network: str = "flat", trimming: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._network, self._trimming = network, trimming
        super().__init__(*args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        policy = cast(Any, self)
        extractor, widths = policy.features_extractor, list(policy.net_arch)
        if self._network == "equivariant":
            policy.mlp_extractor = EquivariantNet(extractor.n_drafts, extractor.n_scores, widths)
        else:
            policy.mlp_extractor = SplitMlp(self._network_input(), extractor.n_scores, widths)

    def _network_input(self) -> int:
        """Width of what the network reads."""
        return int(cast(Any, self).features_dim)

    def _build(self, lr_schedule: Any) -> None:
        policy = cast(Any, self)
        super()._build(lr_schedule)  # type: ignore[misc]
        extractor, net = policy.features_extractor, policy.mlp_extractor
        if self._network == "equivariant":
            policy.action_net = EquivariantHead(extractor.n_drafts, net.latent_dim_vf, extractor.n_scores > 0)
        elif extractor.n_scores:
            policy.action_net = ResidualHead(net.latent_dim_vf, extractor.n_scores)
        policy.trimming = None if self._trimming is None else Trimming(n_drafts=extractor.n_drafts, **self._trimming)
        policy.action_dist = Choices(policy.action_space.nvec, policy.trimming)
        policy.optimizer = policy.optimizer_class(policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Choices:
        policy = cast(Any, self)
        chosen: Choices = policy.action_dist.proba_distribution(policy.action_net(latent_pi))
        return chosen

    def scores(self, observations: Tensor) -> Tensor:
        """Raw observations (batch, D) to the score of every action value, (batch, sum(nvec)), before any mask."""
        policy = cast(Any, self)
        features = policy.features_extractor(observations)
        logits: Tensor = policy.action_net(policy.mlp_extractor.forward_actor(features))
        return logits


class MaskableResidualPolicy(_ResidualMixin, MaskableActorCriticPolicy):
    """For MaskablePPO."""


class ResidualPolicy(_ResidualMixin, ActorCriticPolicy):
    """For PPO without masks, and the network of Q-learning."""


class RecurrentResidualPolicy(_ResidualMixin, RecurrentActorCriticPolicy):
    """For RecurrentPPO: an LSTM between features and network; the prior's scores go past it."""

    def _network_input(self) -> int:
        policy = cast(Any, self)
        return int(policy.lstm_output_dim + policy.features_extractor.n_scores)

    def _process_sequence(  # type: ignore[override]
        self, features: Tensor, lstm_states: Any, episode_starts: Tensor, lstm: nn.LSTM
    ) -> tuple[Tensor, Any]:
        output, states = RecurrentActorCriticPolicy._process_sequence(features, lstm_states, episode_starts, lstm)
        scores = cast(Any, self).features_extractor.n_scores
        return (torch.cat([output, features[:, features.shape[1] - scores :]], dim=1) if scores else output), states
