"""What every draft would do from every position of a text: what an oracle knows and no controller does.

The rules are those of replay (``envs.replay.decoder``), for all positions at once and without catch-up; a test compares
the two round by round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from envs.replay.bank import DraftView, TraceBank
from envs.workload import Item, Stream
from runtime.core import GAMMAS, STOP_LEVELS
from runtime.decoding.drafters.lookup import LookupDrafter

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
LONGEST = GAMMAS[-1]


@dataclass(frozen=True)
class Reach:
    """How far one draft gets. Entry i stands for a round whose first guess is for output token i of L.

    Attributes:
        right: Right guesses in a row, shape (L,).
        made: Guesses it can make in one round, at most ``LONGEST``, shape (L,).
        sent: Of those, how many each stop level lets through, shape (stops, L).
        step_s: Seconds for each guess.
        round_s: Seconds for each round, whatever is guessed.
    """

    right: Ints
    made: Ints
    sent: Ints
    step_s: float
    round_s: float


@dataclass(frozen=True)
class Foresight:
    """One request of a stream with everything that could happen in it.

    Attributes:
        prompt: Prompt tokens.
        end: Tokens the text will have, the first (of the prefill) included.
        most: Tokens that were asked for, at least ``end``.
        verify_s: Seconds of a target forward with 0 … ``LONGEST`` guesses, shape (LONGEST + 1, L).
        drafts: By draft.
        prefill_s: Seconds to the first token with the best prefix that any earlier request of the stream has left.
        reused: Prompt tokens taken from there.
    """

    prompt: int
    end: int
    most: int
    verify_s: Floats
    drafts: tuple[Reach, ...]
    prefill_s: float
    reused: int

    def room(self) -> Ints:
        """Guesses that still fit behind each position, shape (L,)."""
        return self.most - 1 - np.arange(self.verify_s.shape[1])


@dataclass(frozen=True)
class Sends:
    """Every round that could be played: draft d sends k = 1 … ``LONGEST`` guesses from position i.

    Catch-up is not counted. It sends none only where it has none to send.

    Attributes:
        seconds: Time of the round; inf if the draft cannot send so many there, shape (drafts, LONGEST + 1, end).
        tokens: Tokens it commits, 1 … LONGEST + 1, same shape.
    """

    seconds: Floats
    tokens: Ints

    @classmethod
    def of(cls, request: Foresight) -> Sends:
        """All of a request's."""
        end = request.end
        k, here = np.arange(LONGEST + 1)[:, None], np.arange(end)
        room, verify_s = request.room()[:end], request.verify_s[:, :end]
        seconds = np.empty((len(request.drafts), LONGEST + 1, end))
        tokens = np.empty(seconds.shape, dtype=np.int64)
        for index, reach in enumerate(request.drafts):
            most = np.clip(np.minimum(reach.made[:end], room), 0, None)
            can = (k <= most) & ((k >= 1) | (most == 0))
            seconds[index] = np.where(can, reach.round_s + reach.step_s * k + verify_s, np.inf)
            tokens[index] = np.minimum(np.minimum(k, reach.right[:end]) + 1, end - here)
        return cls(seconds, tokens)

    def least_s(self) -> Floats:
        """Least time of a round by what it commits: entry n for n + 1 tokens, shape (drafts, LONGEST + 1, end)."""
        least = np.full(self.seconds.shape, np.inf)
        for k in range(LONGEST + 1):
            n = self.tokens[:, k : k + 1] - 1
            known = np.take_along_axis(least, n, axis=1)
            np.put_along_axis(least, n, np.minimum(known, self.seconds[:, k : k + 1]), axis=1)
        return least


def foresee(stream: Stream, bank: TraceBank) -> tuple[Foresight, ...]:
    """Look ahead along a stream."""
    lookups = {index: LookupDrafter(spec.calibration) for index, spec in enumerate(bank.drafts) if not spec.loadable}
    tables = tuple(np.asarray(table, dtype=np.float64) for table in bank.tables)
    earlier: list[tuple[int, ...]] = []
    ahead = []
    for item in stream:
        replayed = bank.text(item.request.prompt_ids, item.request.request_id)
        drafts = []
        for index in range(len(bank.drafts)):
            view = replayed.views[index]
            if view is None:
                drafts.append(_lookup_reach(item, lookups[index], bank.costs.draft_s(index, 1)))
            else:
                drafts.append(model_reach(view, tables[index], _cheapest_forward_s(bank, index)))
        prompt, length = len(item.request.prompt_ids), len(item.trace.output_ids)
        verify_s = np.array(
            [[bank.costs.round_s(1 + sent, prompt + at - 1) for at in range(length)] for sent in range(LONGEST + 1)]
        )
        prefill_s, reused = _best_prefill(item.request.prompt_ids, earlier, bank)
        end = min(length, item.request.max_new_tokens)
        ahead.append(Foresight(prompt, end, item.request.max_new_tokens, verify_s, tuple(drafts), prefill_s, reused))
        earlier.append((*item.request.prompt_ids, *item.trace.output_ids[: end - 1]))
    return tuple(ahead)


def _cheapest_forward_s(bank: TraceBank, draft: int) -> float:
    """Width 1, unless the measurement says that a wider forward is quicker: a bound must not be beaten by noise."""
    return min(bank.costs.draft_s(draft, 1), *bank.costs.model.costs[draft].forward.seconds)


def model_reach(view: DraftView, table: Floats, step_s: float) -> Reach:
    """How far a draft with weights gets; ``table`` is its calibrated probability by coded confidence."""
    right = np.frombuffer(view.run, dtype=np.uint8).astype(np.int64)
    length = len(right)
    own = table[np.asarray(view.confidence)]
    behind = np.append(table[np.asarray(view.run_on, dtype=np.int64)], 0.0)
    start = np.asarray(view.start, dtype=np.int64)
    at, k = np.arange(length)[:, None], np.arange(LONGEST)[None]
    wrong_at = at + right[:, None]  # where the first wrong guess is; L if there is none
    on_text = (k <= right[:, None]) & (at + k < length)
    run_on = start[np.minimum(wrong_at, length - 1)] + k - right[:, None] - 1
    off_text = (k > right[:, None]) & (wrong_at < length) & (run_on < start[np.minimum(wrong_at + 1, length)])
    probability = np.where(
        on_text, own[np.minimum(at + k, length - 1)], np.where(off_text, behind[np.where(off_text, run_on, -1)], 0.0)
    )
    can = on_text | off_text
    reached = np.cumprod(probability, axis=1)  # (L, LONGEST)
    sent = np.stack([np.minimum(can.sum(axis=1), 1 + (reached >= threshold).sum(axis=1)) for threshold in STOP_LEVELS])
    return Reach(right, can.sum(axis=1), sent, step_s, 0.0)


def _lookup_reach(item: Item, lookup: LookupDrafter, round_s: float) -> Reach:
    """The real drafter, moved along the text token by token; it remembers the requests before."""
    request, output = item.request, item.trace.output_ids
    length, end = len(output), min(len(output), item.request.max_new_tokens)
    right, made = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    sent = np.zeros((len(STOP_LEVELS), length), dtype=np.int64)
    tokens = list(request.prompt_ids)
    lookup.begin()
    for at in range(1, end):
        tokens.append(output[at - 1])
        for level, threshold in enumerate(STOP_LEVELS):
            guesses = lookup.propose(tokens, len(request.prompt_ids), LONGEST, threshold, request.eos_ids).tokens
            sent[level, at] = len(guesses)
            if level == 0:
                wrong = (k for k, pair in enumerate(zip(guesses, output[at:], strict=False)) if pair[0] != pair[1])
                right[at] = next(wrong, min(len(guesses), length - at))
                made[at] = len(guesses)
    lookup.sync((*request.prompt_ids, *output[:end]))
    return Reach(right, made, sent, 0.0, round_s)


def _best_prefill(prompt: tuple[int, ...], earlier: list[tuple[int, ...]], bank: TraceBank) -> tuple[float, int]:
    """(seconds, tokens reused) of the cheapest prefill, over all that was ever computed in the stream."""
    model, length = bank.costs.model, len(prompt)
    best = (model.prefill_s(length, 0), 0)
    for tokens in earlier:
        pairs = zip(tokens, prompt[:-1], strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), length - 1))
        if shared:
            best = min(best, (model.kv_restore_s(shared) + model.prefill_s(length - shared, shared), shared))
    return best
