"""Assisted generation as transformers does it: the draft length follows the last round.

Source: ``AssistedCandidateGenerator`` of Hugging Face transformers. By its ``heuristic`` schedule the next round
guesses two tokens more if all guesses of this one were right, else one less. Since 4.45 its default is a constant 20
and a confidence stop: the draft stops at the first guess it gives less than 0.4. Both can be had here, alone and
together; lengths are capped at the longest of ``GAMMAS``.
"""

from __future__ import annotations

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, speculate
from runtime.core import GAMMAS, Decision, Outcome, StopRule

LONGER, SHORTER = 2, 1
"""Guesses more after a round that was all right, and less after any other."""


class HfDynamicController:
    """One draft, loaded in the background; plain until it is there. The length is kept from request to request.

    Args:
        n_drafts: Drafts of the zoo.
        draft: Index of the draft.
        start: Draft length at the start of a stream, at least 1.
        stop: Stop level, compared with the raw probability of each guess; 0 = the schedule alone. 2 is next to
            transformers' own.
        constant: Whether the length stays what it was at the start.
        reuse_kv: Whether stored prefixes are kept and reused greedily.
        name: Name in reports.
    """

    def __init__(
        self,
        n_drafts: int,
        draft: int,
        start: int = 5,
        stop: int = 2,
        constant: bool = False,
        reuse_kv: bool = True,
        name: str = "hf_dynamic",
    ) -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._draft, self._start, self._stop = draft, min(start, GAMMAS[-1]), stop
        self._constant, self._reuse_kv = constant, reuse_kv
        self._gamma = self._start

    def begin_stream(self) -> None:
        self._gamma = self._start

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, self._draft, self._reuse_kv)
        return speculate(observation, self._draft, self._gamma, self._stop, rest._replace(rule=StopRule.TOKEN))

    def learn(self, outcome: Outcome) -> None:
        done = outcome.round
        if self._constant or done is None or not done.drafted:
            return
        all_right = done.accepted == done.drafted
        self._gamma = min(self._gamma + LONGER, GAMMAS[-1]) if all_right else max(self._gamma - SHORTER, 1)
