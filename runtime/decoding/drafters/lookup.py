"""A drafter without weights: it repeats what followed the last time the same words came up.

Pure Python on token ids, a few microseconds a token; replay runs this very class.

**The rule.** History is the token sequences of this request (prompt and committed text) and of earlier ones. The
longest suffix of the present text, of ``LONGEST`` down to ``SHORTEST`` tokens, that occurred before *and was followed
by something* is the match; the most recent occurrence wins. Guesses are the tokens that followed, to the end of that
sequence; at the end of the present text copying goes on into the guesses themselves, so a repeated pattern continues.

The match is then extended backwards, up to ``FULL_MATCH`` equal tokens: its length m says how far to trust it. Guess k
has raw confidence ``CONFIDENCE[min(m + k - 1, FULL_MATCH)]`` (an accepted guess lengthens the match), and stopping is
the common rule of ``runtime.decoding.drafters.base``. Steps and catch-up are zero: there is no forward.

**Memory.** Two generations of at most ``memory_tokens / 2`` tokens, rotated between requests: when the younger is full
it becomes the older, and the older is forgotten. The younger is searched first, for every suffix length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from runtime.decoding.drafters.base import Proposal, calibrated

LONGEST = 4
SHORTEST = 2
FULL_MATCH = 8
MEMORY_TOKENS = 32_768

CONFIDENCE = (0.0, 0.0, 0.35, 0.45, 0.54, 0.63, 0.65, 0.65, 0.86)
"""Raw confidence by match length: share of right first guesses over 1,500 greedy texts of SmolLM2-135M, with memory."""

_BOUNDARY = -1
"""Stands between two requests; no match extends over it."""

_NGRAMS = tuple(range(LONGEST, SHORTEST - 1, -1))


class _Generation:
    """Sequences one behind the other, and where every n-gram was last *followed*."""

    def __init__(self) -> None:
        self.tokens: list[int] = [_BOUNDARY]
        self.next_of: dict[tuple[int, ...], int] = {}  # n-gram -> position behind its last occurrence
        self._start = 1

    def separate(self) -> None:
        """Close the present sequence."""
        if self.tokens[-1] != _BOUNDARY:
            self.tokens.append(_BOUNDARY)
        self._start = len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the present sequence and index the n-grams that got a follower."""
        all_tokens, next_of, start = self.tokens, self.next_of, self._start
        for token in tokens:
            here = len(all_tokens)
            for n in _NGRAMS:
                if here - n >= start:
                    next_of[tuple(all_tokens[here - n : here])] = here
            all_tokens.append(token)


class _Match(NamedTuple):
    tokens: list[int]
    position: int  # of the first guess
    length: int  # equal tokens before it, at most FULL_MATCH
    present: bool  # in the present text's own generation: copying may run on into the guesses


class LookupDrafter:
    """Implements ``Drafter``; ``sync`` and ``confidence`` besides.

    Args:
        calibration: (slope, offset) on the logit of the raw confidence.
        memory_tokens: Tokens of earlier requests remembered, at most.
    """

    def __init__(self, calibration: tuple[float, float] = (1.0, 0.0), memory_tokens: int = MEMORY_TOKENS) -> None:
        self._probability = tuple(calibrated(raw, calibration) for raw in CONFIDENCE)
        self._limit = max(1, memory_tokens // 2)
        self._young, self._old = _Generation(), _Generation()
        self._synced = 0

    def begin(self) -> None:
        """A new request. Earlier ones stay in memory."""
        self._synced = 0
        if len(self._young.tokens) > self._limit:
            self._old, self._young = self._young, _Generation()
        self._young.separate()

    def sync(self, tokens: Sequence[int]) -> None:
        """Take in the committed tokens of this request that are new."""
        if len(tokens) > self._synced:
            self._young.extend(tokens[self._synced :])
            self._synced = len(tokens)

    def confidence(self, tokens: Sequence[int]) -> float:
        """Calibrated probability of the first guess behind ``tokens``; 0 if there is none."""
        self.sync(tokens)
        match = self._find()
        return 0.0 if match is None else self._probability[match.length]

    def propose(
        self, tokens: Sequence[int], prompt_tokens: int, gamma: int, threshold: float, eos_ids: Collection[int]
    ) -> Proposal:
        self.sync(tokens)
        match = self._find()
        if match is None:
            return Proposal()
        guesses: list[int] = []
        reached, source, end = 1.0, match.tokens, len(match.tokens)
        for k in range(gamma):
            position = match.position + k
            if position < end:
                token = source[position]
            elif match.present:
                token = guesses[position - end]
            else:
                break
            if token == _BOUNDARY:
                break
            reached *= self._probability[min(match.length + k, FULL_MATCH)]
            if threshold > 0.0 and reached < threshold:
                break
            guesses.append(token)
            if token in eos_ids:
                break
        return Proposal(tuple(guesses), confidence=self._probability[match.length])

    def settle(self, length: int) -> None:
        """Nothing to forget: only committed tokens are taken in."""

    def catch_up_tokens(self, committed: int) -> int:
        """Nothing to absorb by forwards."""
        return 0

    def _find(self) -> _Match | None:
        text = self._young.tokens
        available = min(self._synced, LONGEST)
        for n in range(available, SHORTEST - 1, -1):
            suffix = tuple(text[-n:])
            for generation in (self._young, self._old):
                position = generation.next_of.get(suffix)
                if position is not None:
                    present = generation is self._young
                    return _Match(generation.tokens, position, self._extent(generation.tokens, position, n), present)
        return None

    def _extent(self, tokens: Sequence[int], position: int, length: int) -> int:
        text, most = self._young.tokens, min(FULL_MATCH, self._synced)
        while length < most and tokens[position - 1 - length] == text[-1 - length] != _BOUNDARY:
            length += 1
        return length
