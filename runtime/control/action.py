"""The action codec: a decision as five small integers, and what of it is legal.

| dimension | values |
|---|---|
| speculate | 0 = plain, else 1 + draft * len(GAMMAS) + index of gamma |
| stop | index into STOP_LEVELS |
| prefetch | 0 = nothing, else 1 + draft |
| kv | 0 = bypass / drop, 1 = reuse / retain |
| victim | 0 = drafts, 1 = KV entries |

Legality is per dimension (a masked policy draws each dimension on its own). Every dimension always has a legal value.
Two mask formats exist: MaskablePPO wants one flat boolean vector of length ``sum(nvec)``, Gymnasium's
``MultiDiscrete.sample(mask)`` a tuple of int8 arrays; ``split_mask`` converts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from runtime.core import GAMMAS, STOP_LEVELS, Decision, Victim

BoolMask = npt.NDArray[np.bool_]


_VICTIMS = tuple(Victim)


class ActionCodec:
    """Between decisions and integer actions, for a zoo of ``n_drafts`` drafts.

    Attributes:
        nvec: Sizes of the five dimensions.
        offsets: Where each dimension starts in a flat mask; one more entry for the end.
        first_values: The flat mask of nothing but every dimension's first value; not to be changed.
    """

    def __init__(self, n_drafts: int) -> None:
        self.n_drafts = n_drafts
        self.nvec: tuple[int, ...] = (1 + n_drafts * len(GAMMAS), len(STOP_LEVELS), 1 + n_drafts, 2, 2)
        self.offsets: tuple[int, ...] = (0, *accumulate(self.nvec))
        self.first_values: BoolMask = np.zeros(self.offsets[-1], dtype=np.bool_)
        self.first_values[list(self.offsets[:-1])] = True
        self._rounds = ((None, 0), *((draft, gamma) for draft in range(n_drafts) for gamma in GAMMAS))
        self._fetched = (None, *range(n_drafts))

    def decode(self, action: Sequence[int] | npt.NDArray[np.int64]) -> Decision:
        """Five integers to a decision."""
        speculate, stop, prefetch, kv, victim = map(int, action)
        draft, gamma = self._rounds[speculate]
        return Decision(draft, gamma, stop, self._fetched[prefetch], kv == 1, _VICTIMS[victim])

    def encode(self, decision: Decision) -> npt.NDArray[np.int64]:
        """A decision to five integers."""
        speculate = 0 if decision.draft is None else 1 + decision.draft * len(GAMMAS) + GAMMAS.index(decision.gamma)
        prefetch = 0 if decision.prefetch is None else 1 + decision.prefetch
        return np.array([speculate, decision.stop, prefetch, int(decision.kv), int(decision.victim)], dtype=np.int64)

    def split_mask(self, mask: BoolMask) -> tuple[npt.NDArray[np.int8], ...]:
        """Flat boolean mask to Gymnasium's tuple of int8 arrays."""
        return tuple(
            mask[start:end].astype(np.int8) for start, end in zip(self.offsets, self.offsets[1:], strict=False)
        )

    def join_mask(self, parts: Sequence[npt.NDArray[np.int8]]) -> BoolMask:
        """Gymnasium's tuple of int8 arrays to a flat boolean mask."""
        return np.concatenate(parts).astype(np.bool_)
