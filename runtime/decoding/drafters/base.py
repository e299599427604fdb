"""The contract of a drafter, and where every drafter stops.

    tokens (committed):   [ prompt | generated ... pending ]            T of them; the last is pending in the target
    a draft model's KV:   [0 ......... seen )                           seen <= T - 1 between rounds

**The stopping rule.** Every guess that is made is sent to the target. Guess k (1, 2, …) has a calibrated probability
p_k. Guessing ends

* behind the first guess with ``p_1 · … · p_k < threshold`` (never if the threshold is 0), by the rule ``REACH``;
  ``runtime.decoding.stop_rule`` has this and the other rules;
* behind a guess that is one of the request's ending tokens;
* behind guess number ``gamma``.

p_k is the calibrated probability of the draft's *likeliest* token there, also where the guess is then drawn and another
one. Sampling stays exact in any case, since no guess is withheld: whether there is a next one depends only on what the
target verifies before it. Were an unlikely draw withheld, the draws that are sent would not be distributed as q, and
where none is sent the target's token would not make up for it: the text would lean towards what both models like.

**The counters.** ``steps`` is the number of forwards, one for each guess. The first of them also absorbs what the draft
has not seen: it is ``catch_up_tokens + 1`` wide, where ``catch_up_tokens = T - 1 - seen`` leaves out the pending token.
So a proposal costs ``forward(catch_up_tokens + 1) + (steps - 1) · forward(1)``. Absorbed tokens that are *generated*
(the prompt is not the target's text) are scored for free: position i counts if ``max(seen + 1, prompt_tokens) <= i <= T
- 1``, and matches if the draft's greedy guess behind token i - 1 is token i. None of them was counted before, in a
round or as scored.

After a round that accepted ``a`` guesses, ``seen`` is ``min(T + steps - 1, T + a)`` with the old T.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from runtime.core import StopRule

if TYPE_CHECKING:
    import torch

    from runtime.decoding.sampling import Sampler

NAN = float("nan")


class Proposal(NamedTuple):
    """Guesses and what they took.

    Attributes:
        tokens: Guesses to verify, in order; maybe none.
        steps: Forwards of the draft.
        catch_up_tokens: Committed tokens absorbed, the pending one left out.
        scored: (matches, positions) of the draft's greedy guess over absorbed generated tokens.
        confidence: Calibrated probability of the first guess; NaN if there was none.
        probabilities: What each guess was drawn from, after all filters: float32, shape (vocab,) of the target, 0 for
            tokens that the draft does not have. None at all = the guesses were not drawn, each is a point mass.
    """

    tokens: tuple[int, ...] = ()
    steps: int = 0
    catch_up_tokens: int = 0
    scored: tuple[int, int] = (0, 0)
    confidence: float = NAN
    probabilities: tuple[torch.Tensor, ...] = ()


class Drafter(Protocol):
    """Guesses what the target will say. Keeps the state of one request."""

    def begin(self) -> None:
        """A new request: forget the sequence."""
        ...

    def propose(
        self,
        tokens: Sequence[int],
        prompt_tokens: int,
        gamma: int,
        threshold: float,
        eos_ids: Collection[int],
        sampler: Sampler | None = None,
        rule: StopRule = StopRule.REACH,
    ) -> Proposal:
        """Guess what follows the committed ``tokens``.

        Args:
            tokens: All committed tokens of the request, the prompt first.
            prompt_tokens: How many of them are the prompt.
            gamma: Most guesses, at least 1.
            threshold: What the rule compares with: below it guessing stops; 0 = never.
            eos_ids: Tokens that end the text.
            sampler: Chooses the guesses; None = the likeliest token always. Scoring is greedy in any case.
            rule: How sure the draft must be, see ``runtime.decoding.stop_rule``.
        """
        ...

    def settle(self, length: int) -> None:
        """The committed text is the ``length`` first tokens guessed from, plus a pending one: forget the others."""
        ...

    def catch_up_tokens(self, committed: int) -> int:
        """Tokens of ``committed`` that the next proposal absorbs, the pending one left out."""
        ...


def calibrated(raw: float, calibration: tuple[float, float]) -> float:
    """Probability of acceptance from a raw confidence: ``sigmoid(slope * logit(raw) + offset)``."""
    slope, offset = calibration
    raw = min(max(raw, 1e-6), 1.0 - 1e-6)
    score = slope * math.log(raw / (1.0 - raw)) + offset
    return 1.0 / (1.0 + math.exp(-min(max(score, -50.0), 50.0)))
