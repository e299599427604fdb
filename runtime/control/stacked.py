"""Stacked: the best of both papers put together by hand, and a confidence stop. The baseline to fear.

* Draft choice and residency are MemSpec's: predicted acceptance, background loads, the best resident draft.
* Draft length, and whether to guess at all, are RAKV-ASD's: the most expected tokens per unit of measured time. The
  acceptance that this needs is MemSpec's prediction, blended with what was just seen; a draft without weights knows how
  sure it is of its next guess.
* A stored prefix is reused by RAKV-ASD's rule.
* A draft stops behind the first guess it is not sure of.
* Stored KV and drafts give way to each other by what bringing them back would cost per byte.

``stacked_plus`` is more than both papers have: it takes the draft with the highest rate instead of the best predicted
one, so that a look-up guesses just where it is sure of itself (and is not stopped), lets the cost model say where not
to guess, and corrects acceptance by what the last token says about the next guess. That is what this project's own
heuristic knows, written by hand.
"""

from __future__ import annotations

import numpy as np

from runtime.control.action import ActionCodec
from runtime.control.estimate import blended, freshness
from runtime.control.memspec import PREFETCH_MARGIN
from runtime.control.observation import Floats, Observation
from runtime.control.rakv_asd import Length, best_length, reuse_pays
from runtime.control.rules import background, may_speculate, speculate
from runtime.control.worth import Worth
from runtime.core import GAMMAS, Decision, Outcome, Phase
from runtime.profile import CostModel

EVIDENCE_SHARE = 0.3
"""Weight of evidence of the last round against the prediction."""

EVIDENCE_TOKENS = 16.0
"""Tokens after which that weight has fallen to 1/e."""


class StackedController:
    """MemSpec's draft, RAKV-ASD's length and reuse, a stop, and KV kept by its worth.

    Args:
        n_drafts: Drafts of the zoo.
        costs: Measured costs of the device.
        gamma: Draft length; None = the cost model's, plain decoding included.
        stop: Stop level; 0 = off.
        plus: Whether it goes beyond both papers, see above.
        name: Name in reports; None = ``stacked`` or ``stacked_plus``.
    """

    def __init__(
        self,
        n_drafts: int,
        costs: CostModel,
        gamma: int | None = GAMMAS[-1],
        stop: int = 1,
        plus: bool = False,
        name: str | None = None,
    ) -> None:
        self.name = name or ("stacked_plus" if plus else "stacked")
        self._plus = plus
        self._codec = ActionCodec(n_drafts)
        self._costs, self._gamma, self._stop = costs, gamma, stop
        self._worth = Worth(costs)

    def begin_stream(self) -> None:
        self._worth.begin_stream()

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, self._wanted(observation), reuse_kv=True)
        if observation.phase is Phase.ADMIT:
            self._worth.note(observation)
            rest = rest._replace(kv=rest.kv and reuse_pays(observation, self._costs))
        elif observation.phase is Phase.COMPLETE:
            fits = bool(observation.mask[self._codec.offsets[3] + 1])
            return rest._replace(kv=fits and self._worth.retain(observation))
        if rest.prefetch is not None:
            rest = rest._replace(victim=self._worth.victim(observation))
        return self._guess(observation, rest) if observation.phase is Phase.DECODE else rest

    def learn(self, outcome: Outcome) -> None: ...

    def _wanted(self, observation: Observation) -> int | None:
        """By MemSpec's rule: the draft predicted best, if clearly better than the resident ones.

        ``stacked_plus`` leaves look-ups out: they guess now and then, and another draft beside them.
        """
        predicted = observation.per_draft("predicted")
        if self._plus:
            predicted = np.where(observation.per_draft("weightless") > 0, -1.0, predicted)
        here = np.where(observation.per_draft("resident") > 0, predicted, -1.0)
        best = int(np.argmax(predicted))
        return best if predicted[best] > max(0.0, float(here.max()) + PREFETCH_MARGIN) else None

    def _guess(self, observation: Observation, rest: Decision) -> Decision:
        """``rest`` with the chosen resident draft and the length of the highest rate, or plain."""
        expected = self._expected(observation)
        drafts = [d for d in range(len(expected)) if may_speculate(observation, d)]
        if not self._plus:
            predicted = observation.per_draft("predicted")
            drafts = sorted(drafts, key=lambda d: float(predicted[d]))[-1:]
        lengths = {d: best_length(observation, d, float(expected[d])) for d in drafts}
        best = max(drafts, key=lambda d: lengths[d].rate, default=None)
        if best is None or (lengths[best] == Length(0, 1.0) and (self._plus or self._gamma is None)):
            return rest
        if self._plus and observation.per_draft("weightless")[best] > 0:
            return speculate(observation, best, lengths[best].gamma, 0, rest)
        gamma = lengths[best].gamma if self._gamma is None else self._gamma
        return speculate(observation, best, gamma, self._stop, rest)

    def _expected(self, observation: Observation) -> Floats:
        """Acceptance to expect of every draft in this round, shape (drafts,), within 0 and 1."""
        fresh = np.float32(EVIDENCE_SHARE) * freshness(observation, EVIDENCE_TOKENS)
        expected = blended(observation, observation.per_draft("predicted"), fresh)
        if self._plus:
            expected = np.clip(expected + observation.per_draft("next_shift"), 0.0, 1.0)
        weightless = observation.per_draft("weightless") > 0
        chosen: Floats = np.where(weightless, observation.per_draft("confidence"), expected)
        return chosen
