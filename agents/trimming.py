"""Trimmed action sets: one paper's dimensions alone, by mask. The space and the network stay as they are.

| set | free | fixed |
|---|---|---|
| ``all`` | everything | nothing |
| ``drafts`` (MemSpec) | draft or plain, prefetch | length, stop level; stored KV is not used |
| ``lengths`` (RAKV-ASD) | length or plain, reuse, retain | the draft, loaded whenever it can be; stop level |

A fixed length that does not fit the room left gives way to the longest that does, as everywhere; a fixed value that is
not legal gives way to one that is. So every dimension keeps a legal value whenever it had one.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from runtime.control.action import ActionCodec
from runtime.core import GAMMAS, STOP_LEVELS

ACTION_SETS = ("all", "drafts", "lengths")


class Trimming(nn.Module):
    """From what is legal to what of it the set leaves.

    Args:
        actions: One of ``ACTION_SETS``.
        n_drafts: Drafts of the zoo.
        gamma: Length of the set ``drafts``, one of ``GAMMAS``.
        stop: Index of the stop level of both sets.
        draft: Index of the draft of the set ``lengths``.

    Raises:
        ValueError: If a value is not among those there are.
    """

    def __init__(self, actions: str, n_drafts: int, gamma: int = 4, stop: int = 0, draft: int = 0) -> None:
        super().__init__()
        for name, value, expected in (
            ("actions", actions, ACTION_SETS),
            ("fixed_gamma", gamma, GAMMAS),
            ("fixed_stop", stop, range(len(STOP_LEVELS))),
            ("fixed_draft", draft, range(n_drafts)),
        ):
            if value not in expected:
                raise ValueError(f"agent.{name}: expected one of {', '.join(map(str, expected))}, got {value!r}")
        self.actions, self.n_drafts = actions, n_drafts
        self.gamma, self.stop, self.draft = GAMMAS.index(gamma), stop, draft
        self.offsets = ActionCodec(n_drafts).offsets

    def forward(self, mask: Tensor) -> Tensor:
        """Legal values (batch, M), bool, to those that are left, (batch, M), bool."""
        if self.actions == "all":
            return mask
        starts = self.offsets
        speculate, stop, prefetch, kv, victim = (mask[:, start:end] for start, end in pairwise(starts))
        lengths = speculate[:, 1:].reshape(-1, self.n_drafts, len(GAMMAS))
        if self.actions == "drafts":
            lengths, kv, victim = self._one_length(lengths), fixed(kv, 0), fixed(victim, 0)
        else:
            lengths = self._one_draft(lengths)
            prefetch, victim = fixed(prefetch, 1 + self.draft), fixed(victim, 1)
        return torch.cat([speculate[:, :1], lengths.flatten(1), fixed(stop, self.stop), prefetch, kv, victim], dim=1)

    def _one_length(self, lengths: Tensor) -> Tensor:
        """The longest legal length up to the fixed one, of every draft."""
        short = lengths[:, :, : self.gamma + 1]
        none = torch.zeros_like(lengths)
        longer = torch.cat([short[:, :, 1:], none[:, :, :1]], dim=2)
        return torch.cat([short & ~longer, none[:, :, self.gamma + 1 :]], dim=2)

    def _one_draft(self, lengths: Tensor) -> Tensor:
        none = torch.zeros_like(lengths)
        own = slice(self.draft, self.draft + 1)
        return torch.cat([none[:, : self.draft], lengths[:, own], none[:, self.draft + 1 :]], dim=1)


def fixed(part: Tensor, value: int) -> Tensor:
    """One dimension's mask with nothing but ``value``; where that is not legal, with the first other value alone."""
    other = 1 if value == 0 else 0
    wanted = part[:, value : value + 1]
    columns = [torch.zeros_like(wanted)] * part.shape[1]
    columns[value], columns[other] = wanted, part[:, other : other + 1] & ~wanted
    return torch.cat(columns, dim=1)
