"""A network that scores every draft with the same weights: one policy serves zoos of any size, in any order.

A draft is described by its own features and by all global ones; what the others offer reaches it as the mean and the
maximum of all drafts' descriptions. So its score does not depend on where in the zoo it stands, and the shapes of the
weights do not depend on how many there are. Source of the form: Zaheer et al. 2017, Deep Sets.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from runtime.control.observation import G, P
from runtime.core import GAMMAS, STOP_LEVELS

OWN = len(GAMMAS) + 1
"""Scores of one draft: its lengths, and fetching it."""
SHARED = 1 + len(STOP_LEVELS) + 1 + 2 + 2
"""Scores of the rest: plain, stop levels, fetching nothing, KV, victim."""


def split_scores(scores: Tensor, n_drafts: int) -> tuple[Tensor, Tensor]:
    """Scores of all action values, (batch, M), to the rest's, (batch, SHARED), and the drafts', (batch, N, OWN)."""
    sizes = (1, n_drafts * len(GAMMAS), len(STOP_LEVELS), 1, n_drafts, 4)
    starts = [0, *accumulate(sizes)]
    plain, lengths, stop, nothing, fetch, rest = (scores[:, a:b] for a, b in pairwise(starts))
    own = torch.cat([lengths.reshape(-1, n_drafts, len(GAMMAS)), fetch.unsqueeze(2)], dim=2)
    return torch.cat([plain, stop, nothing, rest], dim=1), own


def join_scores(shared: Tensor, own: Tensor) -> Tensor:
    """The way back, to (batch, M)."""
    stops = 1 + len(STOP_LEVELS)
    lengths, fetch = own[:, :, : len(GAMMAS)].flatten(1), own[:, :, len(GAMMAS)]
    plain, stop, nothing, rest = shared[:, :1], shared[:, 1:stops], shared[:, stops : stops + 1], shared[:, stops + 1 :]
    return torch.cat([plain, lengths, stop, nothing, fetch, rest], dim=1)


class Tower(nn.Module):
    """From global features and drafts to a description of all and, if asked, one of each.

    Args:
        glob: Width of the global features.
        own: Width of a draft's features.
        first: Width of a draft's description before it knows of the others.
        last: Width of what comes out.
    """

    def __init__(self, glob: int, own: int, first: int, last: int) -> None:
        super().__init__()
        self.from_global, self.from_draft = nn.Linear(glob, first), nn.Linear(own, first, bias=False)
        self.pooled = nn.Linear(glob + 2 * first, last)

    def forward(self, glob: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, glob) and (batch, N, own) to (batch, last) and drafts' own descriptions (batch, N, first)."""
        drafts = torch.tanh(self.from_global(glob).unsqueeze(1) + self.from_draft(rows))
        together = torch.cat([glob, drafts.mean(dim=1), drafts.amax(dim=1)], dim=1)
        return torch.tanh(self.pooled(together)), drafts


class EquivariantNet(nn.Module):
    """Two towers on the features; the policy's latent carries the prior's scores on to the head.

    Attributes:
        latent_dim_pi: Width of the policy latent: all together, every draft, the prior's scores.
        latent_dim_vf: Width of the value latent.

    Args:
        n_drafts: Drafts of the zoo.
        scores: Length of the prior's scores behind the features, 0 if there is none.
        widths: First: a draft by itself; last: a draft among the others, and all together.
    """

    def __init__(self, n_drafts: int, scores: int, widths: list[int]) -> None:
        super().__init__()
        self.n_drafts, self.scores = n_drafts, scores
        glob, own = (G + SHARED, P + OWN) if scores else (G, P)
        first, last = widths[0], widths[-1]
        self.policy_net, self.value_net = Tower(glob, own, first, last), Tower(glob, own, first, last)
        self.among = nn.Linear(first + last, last)
        self.latent_dim_pi, self.latent_dim_vf = last * (1 + n_drafts) + scores, last

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features to (policy latent, value latent)."""
        return self.forward_actor(features), self.forward_critic(features)

    def _parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        end = G + self.n_drafts * P
        glob, rows = features[:, :G], features[:, G:end].reshape(-1, self.n_drafts, P)
        if not self.scores:
            return glob, rows
        shared, own = split_scores(features[:, end:], self.n_drafts)
        return torch.cat([glob, shared], dim=1), torch.cat([rows, own], dim=2)

    def forward_actor(self, features: Tensor) -> Tensor:
        """(batch, features) to (batch, last * (1 + N) + scores)."""
        together, drafts = self.policy_net(*self._parts(features))
        everywhere = together.unsqueeze(1).expand(-1, self.n_drafts, -1)
        among = torch.tanh(self.among(torch.cat([drafts, everywhere], dim=2)))
        return torch.cat([together, among.flatten(1), features[:, features.shape[1] - self.scores :]], dim=1)

    def forward_critic(self, features: Tensor) -> Tensor:
        """(batch, features) to (batch, last)."""
        together: Tensor = self.value_net(*self._parts(features))[0]
        return together


class EquivariantHead(nn.Module):
    """Scores of the prior, if there is one, plus corrections that the same weights give every draft.

    Args:
        n_drafts: Drafts of the zoo.
        width: Width of the descriptions.
        scores: Whether the latent ends with the prior's scores: then the corrections start at zero.
    """

    def __init__(self, n_drafts: int, width: int, scores: bool) -> None:
        super().__init__()
        self.n_drafts, self.width, self.scores = n_drafts, width, scores
        self.shared, self.own = nn.Linear(width, SHARED), nn.Linear(width, OWN)
        for layer in (self.shared, self.own):
            nn.init.zeros_(layer.bias)
            if scores:
                nn.init.zeros_(layer.weight)
            else:
                nn.init.orthogonal_(layer.weight, gain=0.01)

    def forward(self, latent: Tensor) -> Tensor:
        """(batch, width * (1 + N) + scores) to logits (batch, M)."""
        end = self.width * (1 + self.n_drafts)
        drafts = latent[:, self.width : end].reshape(-1, self.n_drafts, self.width)
        correction = join_scores(self.shared(latent[:, : self.width]), self.own(drafts))
        return latent.detach()[:, end:] + correction if self.scores else correction
