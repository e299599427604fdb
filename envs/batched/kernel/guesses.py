"""How far a draft guesses: ``envs.replay.decoder._guess``, for all places of a text ahead."""

from __future__ import annotations

from envs.batched.kernel import columns as col
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.tables import Bytes, Doubles, Ints


@compiled
def count_guesses(
    run: Bytes, scores: Doubles, run_on: Doubles, start: Ints, thresholds: Doubles, most: int, guess: Bytes
) -> None:
    """Fill in how many of up to ``most`` guesses are made, by place and stop level.

    Args:
        run: Right guesses in a row from each of L places on, shape (L,).
        scores: Calibrated probability of each guess, shape (L,).
        run_on: Of guesses behind wrong ones.
        start: Where each place's begin, shape (L + 1,).
        thresholds: Stop levels.
        most: Most guesses of a round.
        guess: Rows of ``Tables.guess``, changed, shape (L, 1 + levels).
    """
    for at in range(len(run)):
        for level in range(len(thresholds)):
            guess[at, col.SENT + level] = _count(run, scores, run_on, start, thresholds[level], most, at)


@compiled
def _count(run: Bytes, scores: Doubles, run_on: Doubles, start: Ints, threshold: float, most: int, at: int) -> int:
    length, right, sent, reached = len(run), int(run[at]), 0, 1.0
    wrong = at + right
    behind = int(start[wrong]) - right - 1 if wrong < length else 0
    while sent < most:
        if sent <= right:
            score = scores[at + sent]
        elif behind + sent < start[wrong + 1]:
            score = run_on[behind + sent]
        else:
            break
        reached = reached * score
        sent += 1
        if reached < threshold or (sent <= right and at + sent == length):
            break
    return sent
