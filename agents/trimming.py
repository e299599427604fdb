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

    rivals: Tensor
    ends: Tensor

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
        never = self.offsets[-1]
        self.free, self.out = never, never + 1  # of an extended mask: never legal, always legal
        rivals = torch.tensor({"all": self._all, "drafts": self._drafts, "lengths": self._lengths}[actions]())
        self.register_buffer("rivals", rivals, persistent=False)
        self.register_buffer("ends", torch.tensor([[False, True]]), persistent=False)

    def forward(self, mask: Tensor) -> Tensor:
        """Legal values (batch, M), bool, to those that are left, (batch, M), bool.

        A value is left if it is legal and its rival is not.
        """
        if self.actions == "all":
            return mask
        extended = torch.cat([mask, self.ends.expand(mask.shape[0], -1)], dim=1)
        return mask & ~extended.index_select(1, self.rivals)

    def _all(self) -> list[int]:
        return [self.free] * self.offsets[-1]

    def _drafts(self) -> list[int]:
        """Of every draft the longest legal length up to the fixed one."""
        lengths = []
        for draft in range(self.n_drafts):
            first = 1 + draft * len(GAMMAS)
            longer = [first + k + 1 for k in range(self.gamma)]
            lengths += [*longer, self.free, *[self.out] * (len(GAMMAS) - self.gamma - 1)]
        prefetch = [self.free] * (1 + self.n_drafts)
        return [self.free, *lengths, *self._fixed(1, self.stop), *prefetch, *self._fixed(3, 0), *self._fixed(4, 0)]

    def _lengths(self) -> list[int]:
        lengths = [self.free if draft == self.draft else self.out for draft in range(self.n_drafts) for _ in GAMMAS]
        prefetch, kv = self._fixed(2, 1 + self.draft), [self.free] * 2
        return [self.free, *lengths, *self._fixed(1, self.stop), *prefetch, *kv, *self._fixed(4, 1)]

    def _fixed(self, dimension: int, value: int) -> list[int]:
        """Nothing but ``value``; where that is not legal, the first other value alone."""
        start, end = self.offsets[dimension], self.offsets[dimension + 1]
        rivals = [self.out] * (end - start)
        rivals[value], rivals[1 if value == 0 else 0] = self.free, start + value
        return rivals
