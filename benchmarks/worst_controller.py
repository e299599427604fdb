"""A controller that decides as badly as it may: a test instrument for what guards a session."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.core import GAMMAS, Decision, DraftSpec, Outcome, Phase, Victim


class WorstController:
    """Guesses as far as it may with the worst draft, never stops, loads whatever it can, keeps all KV at drafts' cost.

    Args:
        drafts: The zoo's drafts.
    """

    name = "worst"

    def __init__(self, drafts: Sequence[DraftSpec]) -> None:
        self._codec = ActionCodec(len(drafts))
        self._drafts = range(len(drafts))

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        offsets, mask = self._codec.offsets, observation.mask
        loads = np.flatnonzero(mask[offsets[2] + 1 : offsets[3]])
        prefetch = int(loads[0]) if loads.size else None
        if observation.phase is not Phase.DECODE:
            return Decision(prefetch=prefetch, kv=bool(mask[offsets[3] + 1]), victim=Victim.DRAFTS)
        longest = {draft: sum(mask[1 + draft * len(GAMMAS) :][: len(GAMMAS)]) for draft in self._drafts}
        weightless, acceptance = observation.per_draft("weightless"), observation.per_draft("acceptance")
        legal = sorted((bool(weightless[d]), float(acceptance[d]), d) for d in self._drafts if longest[d])
        if not legal:
            return Decision(prefetch=prefetch)
        draft = legal[0][2]
        return Decision(draft, GAMMAS[longest[draft] - 1], prefetch=prefetch)

    def learn(self, outcome: Outcome) -> None: ...
