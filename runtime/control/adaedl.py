"""AdaEDL: stop guessing by entropy, with a threshold that follows the acceptance seen.

Source: Agrawal et al. 2024, arXiv:2410.18351. Guessing ends where ``1 - sqrt(0.2 * H)``, a lower bound on the
probability of acceptance, falls below a threshold (``runtime.decoding.stop_rule``). The threshold is moved after every
round as in Draft & Verify (Zhang et al. 2024, arXiv:2309.08168): up by a step if the running acceptance rate is at most
its target, else down. A decision names a stop level, so the level next to the threshold is used.
"""

from __future__ import annotations

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, speculate
from runtime.core import GAMMAS, STOP_LEVELS, Decision, Outcome, StopRule

RATE_KEPT = 0.5
"""Weight that the running acceptance rate keeps in a round."""


class AdaEdlController:
    """One draft, loaded in the background; plain until it is there. The threshold is kept from request to request.

    Args:
        n_drafts: Drafts of the zoo.
        draft: Index of the draft.
        gamma: Most guesses of a round.
        stop: Stop level to start a stream with.
        target: Acceptance rate that the threshold is moved towards; None = it stays.
        step: How far the threshold moves in a round; published as 0.01, of which a tenth is taken.
        reuse_kv: Whether stored prefixes are kept and reused greedily.
        name: Name in reports.

    Attributes:
        threshold: Where the bound must be now.
    """

    def __init__(
        self,
        n_drafts: int,
        draft: int,
        gamma: int = GAMMAS[-1],
        stop: int = 2,
        target: float | None = 0.9,
        step: float = 0.001,
        reuse_kv: bool = True,
        name: str = "adaedl",
    ) -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._draft, self._gamma, self._stop, self._reuse_kv = draft, gamma, stop, reuse_kv
        self._target, self._step = target, step
        self.begin_stream()

    def begin_stream(self) -> None:
        self.threshold = STOP_LEVELS[self._stop]
        self._rate = self._target

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, self._draft, self._reuse_kv)
        level = min(range(len(STOP_LEVELS)), key=lambda i: abs(STOP_LEVELS[i] - self.threshold))
        return speculate(observation, self._draft, self._gamma, level, rest._replace(rule=StopRule.ENTROPY))

    def learn(self, outcome: Outcome) -> None:
        done = outcome.round
        if self._target is None or self._rate is None or done is None or not done.drafted:
            return
        self._rate = RATE_KEPT * self._rate + (1.0 - RATE_KEPT) * done.accepted / done.drafted
        moved = self.threshold + (self._step if self._rate <= self._target else -self._step)
        self.threshold = min(max(moved, STOP_LEVELS[0]), STOP_LEVELS[-1])
