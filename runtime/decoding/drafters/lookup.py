"""A drafter without weights: it repeats what followed the last time the same words came up.

Pure Python on token ids, a few microseconds a token; replay runs this very class.

**The rule.** History is the token sequences of this request (prompt and committed text), of earlier ones and of
documents given ahead. The longest suffix of the present text, of ``LONGEST`` down to ``SHORTEST`` tokens, that
occurred before *and was followed by something* is the match; the most recent occurrence wins. Guesses are the tokens
that followed, to the end of that sequence; at the end of the present text copying goes on into the guesses
themselves, so a repeated pattern continues.

The match is then extended backwards, up to ``FULL_MATCH`` equal tokens: its length m says how far to trust it. Guess k
has raw confidence ``CONFIDENCE[min(m + k - 1, FULL_MATCH)]`` (an accepted guess lengthens the match), and stopping is
the common rule of ``runtime.decoding.drafters.base``. Steps and catch-up are zero: there is no forward. Nothing is
drawn: guesses are point masses, whatever the request's sampling.

**Memory.** Two generations, rotated between requests: when the younger holds more than ``memory_tokens / 2`` tokens it
becomes the older, and the older is forgotten. The younger is searched first, for every suffix length. A request that
alone fills a generation to ``memory_tokens`` rotates in its middle, so no more than ``2 * memory_tokens`` are ever
held. A token costs 4 bytes in a typed array and, per suffix length, a slot of an open-addressing table that
holds positions only: the suffix itself is compared in the token array. Tables are at least 3/8 full once a generation
is due for rotation, so a remembered token takes at most ``BYTES_PER_TOKEN``, and ``capacity_bytes`` bounds the whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from runtime.core import StopRule
from runtime.decoding.drafters.base import Proposal
from runtime.decoding.stop_rule import Confidence, guess_score

if TYPE_CHECKING:
    from runtime.decoding.sampling import Sampler

LONGEST = 4
SHORTEST = 2
FULL_MATCH = 8
MEMORY_TOKENS = 32_768

CONFIDENCE = (0.0, 0.0, 0.35, 0.45, 0.54, 0.63, 0.65, 0.65, 0.86)
"""Raw confidence by match length: share of right first guesses over 1,500 greedy texts of SmolLM2-135M, with memory."""

BYTES_PER_TOKEN = 40
"""Most bytes that a remembered token takes: 4.3 in the token array (which grows by an eighth at once), and three slots
of 4 bytes in tables that are at least 3/8 full."""

FIXED_BYTES = 8_192
"""Most bytes of a drafter that do not depend on how much it remembers."""

_BOUNDARY = -1
"""Stands between two requests; no match extends over it."""

_NGRAMS = tuple(range(LONGEST, SHORTEST - 1, -1))


class _Table:
    """Where every n-gram of one length was last *followed*: positions by open addressing, compared in ``tokens``.

    Args:
        n: Length of the n-grams.
        tokens: What the positions point into; shared with the owner, who appends to it.
        expected: n-grams that fit without growing.
    """

    def __init__(self, n: int, tokens: array[int], expected: int) -> None:
        self._n, self._tokens, self._used = n, tokens, 0
        self._resize(max(expected, 4))

    def find(self, gram: tuple[int, ...]) -> int:
        """The position behind the last occurrence of ``gram``; 0 if it has none."""
        return self._slots[self._slot(gram)]

    def note(self, gram: tuple[int, ...], position: int) -> None:
        """``gram`` occurred, and ``position`` follows it."""
        slot = self._slot(gram)
        if not self._slots[slot]:
            self._used += 1
            if 4 * self._used > 3 * len(self._slots):
                self._grow()
                slot = self._slot(gram)
        self._slots[slot] = position

    def _slot(self, gram: tuple[int, ...]) -> int:
        """Where ``gram`` is or would be: triangular probing, which reaches every slot of a power of two."""
        slots, tokens, n, mask = self._slots, self._tokens, self._n, self._mask
        slot, step, last = hash(gram) & mask, 0, gram[-1]
        while position := slots[slot]:
            if tokens[position - 1] == last and tuple(tokens[position - n : position]) == gram:
                return slot
            step += 1
            slot = (slot + step) & mask
        return slot

    def _resize(self, entries: int) -> None:
        size = 1
        while 3 * size < 4 * entries:
            size *= 2
        self._slots = array("i", bytes(4 * size))
        self._mask = size - 1

    def _grow(self) -> None:
        before = self._slots
        self._resize(len(before))  # 3/4 full and one more: the next power of two
        for position in before:
            if position:
                self._slots[self._slot(tuple(self._tokens[position - self._n : position]))] = position


class _Generation:
    """Sequences one behind the other, and where every n-gram was last followed."""

    def __init__(self, expected: int) -> None:
        self.tokens = array("i", [_BOUNDARY])
        self._tables = {n: _Table(n, self.tokens, expected) for n in _NGRAMS}
        self._start = 1

    def separate(self) -> None:
        """Close the present sequence."""
        if self.tokens[-1] != _BOUNDARY:
            self.tokens.append(_BOUNDARY)
        self._start = len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the present sequence and index the n-grams that got a follower."""
        known, here = self.tokens, len(self.tokens)
        recent = tuple(known[max(self._start, here - LONGEST) : here])
        for token in tokens:
            for n in range(SHORTEST, len(recent) + 1):
                self._tables[n].note(recent[-n:], here)
            known.append(token)
            here += 1
            recent = (*recent[1 - LONGEST :], token)

    def find(self, gram: tuple[int, ...]) -> int:
        """The position behind the last followed occurrence of ``gram``; 0 if it has none."""
        return self._tables[len(gram)].find(gram)


class _Match(NamedTuple):
    tokens: Sequence[int]
    position: int  # of the first guess
    length: int  # equal tokens before it, at most FULL_MATCH
    present: bool  # in the present text's own generation: copying may run on into the guesses


class LookupDrafter:
    """Implements ``Drafter``; ``sync``, ``remember`` and ``confidence`` besides.

    Args:
        calibration: (slope, offset) on the logit of the raw confidence.
        memory_tokens: Tokens of earlier requests remembered, at most.
    """

    def __init__(self, calibration: tuple[float, float] = (1.0, 0.0), memory_tokens: int = MEMORY_TOKENS) -> None:
        self._scores = {rule: tuple(guess_score(rule, raw, calibration) for raw in CONFIDENCE) for rule in StopRule}
        self._probability = self._scores[StopRule.REACH]
        self._limit = max(1, memory_tokens // 2)
        self._young, self._old = _Generation(self._limit), _Generation(0)
        self._synced = 0

    @property
    def capacity_bytes(self) -> int:
        """Most bytes this drafter ever takes, a growing table included."""
        return capacity_bytes(2 * self._limit)

    @property
    def remembered_tokens(self) -> int:
        """Tokens held, boundaries included."""
        return len(self._young.tokens) + len(self._old.tokens)

    def begin(self) -> None:
        """A new request. Earlier ones stay in memory."""
        self._synced = 0
        if len(self._young.tokens) > self._limit:
            self._rotate()
        self._young.separate()

    def sync(self, tokens: Sequence[int]) -> None:
        """Take in the committed tokens of this request that are new."""
        while len(tokens) > self._synced:
            room = 2 * self._limit - len(self._young.tokens)
            if room < 1:
                self._rotate()
                self._synced = max(0, self._synced - FULL_MATCH)  # the new generation knows what a match needs
                room = max(FULL_MATCH + 1, 2 * self._limit - 1)
            self._young.extend(tokens[self._synced : self._synced + room])
            self._synced = min(len(tokens), self._synced + room)

    def remember(self, tokens: Sequence[int]) -> None:
        """Take in a document ahead of the requests that may quote it.

        Only its last tokens are kept if it is longer than the memory. May be called at any time; the text of a request
        in hand is then taken in anew.
        """
        rest = tokens[-2 * self._limit :]
        while True:
            self.begin()
            room = max(FULL_MATCH + 1, self._limit + 1 - len(self._young.tokens))
            self._young.extend(rest[:room])
            if len(rest) <= room:
                break
            rest = rest[room - FULL_MATCH :]  # a match that lies over the cut is found behind it
        self.begin()

    def confidence(self, tokens: Sequence[int]) -> float:
        """Calibrated probability of the first guess behind ``tokens``; 0 if there is none."""
        self.sync(tokens)
        match = self._find()
        return 0.0 if match is None else self._probability[match.length]

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
        self.sync(tokens)
        match = self._find()
        if match is None:
            return Proposal()
        guesses: list[int] = []
        sure, scores, source, end = Confidence(rule, threshold), self._scores[rule], match.tokens, len(match.tokens)
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
            enough = sure.suffices(scores[min(match.length + k, FULL_MATCH)])
            guesses.append(token)
            if not enough or token in eos_ids:
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
                position = generation.find(suffix)
                if position:
                    present = generation is self._young
                    return _Match(generation.tokens, position, self._extent(generation.tokens, position, n), present)
        return None

    def _extent(self, tokens: Sequence[int], position: int, length: int) -> int:
        text, most = self._young.tokens, min(FULL_MATCH, self._synced)
        while length < most and tokens[position - 1 - length] == text[-1 - length] != _BOUNDARY:
            length += 1
        return length

    def _rotate(self) -> None:
        self._old, self._young = self._young, _Generation(self._limit)


def capacity_bytes(memory_tokens: int = MEMORY_TOKENS) -> int:
    """Most bytes that a drafter of this memory ever takes: two generations, each at most ``memory_tokens`` long."""
    return FIXED_BYTES + BYTES_PER_TOKEN * 2 * memory_tokens
