"""When a draft stops guessing for want of confidence: one rule for every drafter and for replay.

Before a guess is chosen it gets a *score* from the draft's raw top-1 probability p there (``guess_score``):

| rule | score of one guess | guessing ends behind the first guess |
|---|---|---|
| ``REACH`` | p, calibrated: the probability of acceptance | for which the product of all scores is too low |
| ``TOKEN`` | p itself | whose score is too low |
| ``ENTROPY`` | ``1 - sqrt(0.2 * H)``: the least probability of acceptance | whose score is too low |

Too low is below the threshold; a threshold of 0 never ends guessing. The guess that fails is still sent: its forward is
spent, and verifying one token more costs next to nothing beside the chance that it is right. What the rule saves is the
next forward. (Withholding it made the default zoo's drafts slower at every threshold, see docs/experiments.md.)

Sources: ``TOKEN`` is transformers' ``assistant_confidence_threshold`` (without the moving of the threshold that it does
if scikit-learn is there). ``ENTROPY`` is AdaEDL (Agrawal et al. 2024, arXiv:2410.18351), which takes the entropy H of
the draft's whole distribution; a trace holds the top-1 probability only, so ``entropy`` estimates H from it, live too,
and both decide alike.
"""

from __future__ import annotations

import math

from runtime.core import StopRule
from runtime.decoding.drafters.base import calibrated

ENTROPY_SCALE = 0.2
"""Factor on the entropy under AdaEDL's root, as published."""

SPREAD = 32
"""Tokens over which the rest of the probability is taken to be spread evenly: with the default zoo's drafts the bound
is then right on average."""


def entropy(top: float) -> float:
    """Entropy in nats of a distribution whose likeliest token has probability ``top``; falls as ``top`` rises.

    That of ``top`` against the rest, and the rest spread evenly over ``SPREAD`` tokens; over more where each of these
    would be likelier than the likeliest.
    """
    top = min(max(top, 1e-6), 1.0 - 1e-6)
    rest = 1.0 - top
    return -top * math.log(top) - rest * math.log(rest / max(SPREAD, rest / top))


def guess_score(rule: StopRule, top: float, calibration: tuple[float, float]) -> float:
    """Score of one guess, within 0 and 1.

    Args:
        rule: The rule.
        top: Raw probability of the draft's likeliest token.
        calibration: (slope, offset) of the draft.
    """
    if rule is StopRule.REACH:
        return calibrated(top, calibration)
    if rule is StopRule.TOKEN:
        return top
    return max(0.0, 1.0 - math.sqrt(ENTROPY_SCALE * entropy(top)))


class Confidence:
    """Decides guess by guess, in one round, whether a draft is sure enough.

    Args:
        rule: The rule.
        threshold: Score, or product of scores, below which guessing ends; 0 = never.
    """

    def __init__(self, rule: StopRule, threshold: float) -> None:
        self._joint, self._threshold, self._reached = rule is StopRule.REACH, threshold, 1.0

    def suffices(self, score: float) -> bool:
        """Whether guessing goes on behind the next guess, of this score; asked once for each guess, in order."""
        self._reached = self._reached * score if self._joint else score
        return self._reached >= self._threshold
