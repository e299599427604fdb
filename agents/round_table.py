"""What a round brings, measured on the training traces: the table behind the policy's prior.

For every draft, draft length and stop level: mean accepted, verified and computed guesses of a round, by the
acceptance one would have estimated just before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agents.foresight import Reach
from runtime.core import GAMMAS, STOP_LEVELS
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.state import EVIDENCE_DECAY

Floats = npt.NDArray[np.float32]
BINS = 11
"""Knots of the estimated acceptance, 0.0, 0.1 … 1.0."""
SMOOTHING = 30.0
"""Positions of the pooled curve mixed into every bin of a draft."""


EVIDENCE_SHARE = 0.6
"""Weight of fresh evidence against the topic's prediction (0.3 was as good)."""
SHIFT_WEIGHT = 6.0
"""Logits of a whole unit of the last token's shift (fitted by logistic regression on training texts)."""
LEAST = 0.01
"""Estimates are kept this far from 0 and 1 before they become logits."""


class GuessRow(NamedTuple):
    """One draft on one text. All arrays have shape (positions,).

    Attributes:
        draft: Index of the draft.
        matches: Whether the draft's guess is the target's token.
        reach: How far it gets from there.
        predicted: Topic predictor's acceptance before that position.
        shift: What the last token says about that position.
    """

    draft: int
    matches: npt.NDArray[np.bool_]
    reach: Reach
    predicted: Floats
    shift: Floats


class LookupRow(NamedTuple):
    """A draft without weights on one text.

    Attributes:
        draft: Index of the draft.
        confidence: Calibrated probability of its first guess at every position, shape (positions,).
        statistics: What a round there brings, shape (positions, gammas, stops, 3).
    """

    draft: int
    confidence: Floats
    statistics: Floats


@dataclass(frozen=True)
class RoundTable:
    """Measured statistics of a round.

    Attributes:
        drafts: Draft names.
        statistics: Float32, shape (drafts, bins, gammas, stops, 3): accepted, verified, computed guesses.
    """

    drafts: tuple[str, ...]
    statistics: Floats


def reach_statistics(reach: Reach) -> Floats:
    """Accepted, verified and computed guesses of a round from every position.

    Returns:
        Float32, shape (positions, gammas, stops, 3).
    """
    result = np.zeros((len(reach.right), len(GAMMAS), len(STOP_LEVELS), 3), dtype=np.float32)
    for s in range(len(STOP_LEVELS)):
        for g, gamma in enumerate(GAMMAS):
            sent = np.minimum(reach.sent[s], gamma)
            result[:, g, s, 0] = np.minimum(reach.right, sent)
            result[:, g, s, 1] = result[:, g, s, 2] = sent
    return result


def estimates(matches: npt.NDArray[np.bool_], predicted: Floats, shift: Floats, start: float) -> Floats:
    """The acceptance of the next guess that a session with fresh evidence would estimate before every position."""
    recent = np.empty(len(matches), dtype=np.float32)
    value = start
    for i, match in enumerate(matches):
        recent[i] = value
        value = value * EVIDENCE_DECAY + (1.0 - EVIDENCE_DECAY) * float(match)
    mixed = np.clip(EVIDENCE_SHARE * recent + (1.0 - EVIDENCE_SHARE) * predicted, LEAST, 1.0 - LEAST)
    logits = np.log(mixed) - np.log1p(-mixed) + SHIFT_WEIGHT * shift
    estimate: Floats = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
    return estimate


def lookup_row(draft: int, drafter: LookupDrafter, prompt: Sequence[int], output: Sequence[int]) -> LookupRow:
    """Let a lookup draft guess at every position of a text and see how far it would have been right."""
    drafter.begin()
    tokens = [*prompt, output[0]]
    confidence: list[float] = []
    statistics = np.zeros((len(output) - 1, len(GAMMAS), len(STOP_LEVELS), 3), dtype=np.float32)
    for at in range(1, len(output)):
        for s, stop in enumerate(STOP_LEVELS):
            proposal = drafter.propose(tokens, len(prompt), GAMMAS[-1], stop, ())
            pairs = zip(proposal.tokens, output[at:], strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            for g, gamma in enumerate(GAMMAS):
                sent = min(gamma, len(proposal.tokens))
                statistics[at - 1, g, s] = (min(right, sent), sent, 0.0)
            if s == 0:
                confidence.append(proposal.confidence if proposal.tokens else 0.0)
        tokens.append(output[at])
    return LookupRow(draft, np.array(confidence, dtype=np.float32), statistics)


def build_round_table(
    drafts: tuple[str, ...], expected: tuple[float, ...], rows: Iterable[GuessRow], lookups: Sequence[LookupRow] = ()
) -> RoundTable:
    """Measure the table. Bins with few positions lean on the curve pooled over all drafts with weights."""
    shape = (len(drafts), BINS, len(GAMMAS), len(STOP_LEVELS), 3)
    sums, counts = np.zeros(shape), np.zeros((len(drafts), BINS))
    for row in rows:
        if not len(row.matches):
            continue
        statistics = reach_statistics(row.reach)
        estimate = estimates(row.matches, row.predicted, row.shift, expected[row.draft])
        bins = np.clip(np.rint(estimate * (BINS - 1)).astype(int), 0, BINS - 1)
        np.add.at(sums[row.draft], bins, statistics)
        np.add.at(counts[row.draft], bins, 1.0)
    pooled_count = counts.sum(axis=0)
    pooled = _fill_empty(sums.sum(axis=0) / np.maximum(pooled_count, 1.0)[:, None, None, None], pooled_count > 0)
    for lookup in lookups:
        bins = np.clip(np.rint(lookup.confidence * (BINS - 1)).astype(int), 0, BINS - 1)
        np.add.at(sums[lookup.draft], bins, lookup.statistics)
        np.add.at(counts[lookup.draft], bins, 1.0)
    weight = counts[:, :, None, None, None]
    table = (sums + SMOOTHING * pooled) / (weight + SMOOTHING)
    for draft in {
        lookup.draft for lookup in lookups
    }:  # few distinct confidences: its own nearest, not the pooled curve
        own = sums[draft] / np.maximum(counts[draft], 1.0)[:, None, None, None]
        table[draft] = _fill_empty(own, counts[draft] > 0)
    return RoundTable(drafts, table.astype(np.float32))


def _fill_empty(curve: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Bins without positions take the nearest known bin."""
    places = np.flatnonzero(known)
    if not len(places):
        return curve
    nearest = places[np.abs(np.arange(len(curve))[:, None] - places).argmin(axis=1)]
    filled: npt.NDArray[np.float64] = curve[nearest]
    return filled
