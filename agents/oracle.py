"""Two oracles: bounds to compare with, not controllers. Both are computed from traces and profile alone.

* ``oracle_perfect`` is the papers' perfect draft choice: it knows which draft (or plain) gives the most tokens per
  second over the next 16 tokens. Length and stop level are one setting for all, the best on these very streams. A
  controller that adapts its length can beat it.
* ``oracle_clairvoyant`` knows every guess of every draft and takes the least time over all drafts and lengths up to 8,
  by dynamic programming. Nothing that obeys replay can beat it.

Loads, memory and catch-up cost neither of them anything. Both prefill from the best prefix that any earlier request of
the stream has left, pay for restoring it, and keep prefixes for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agents.evaluation import StreamResult
from agents.foresight import LONGEST, Foresight, foresee
from envs.replay.bank import TraceBank
from envs.workload import Stream
from runtime.core import GAMMAS, STOP_LEVELS

LOGGER = logging.getLogger(__name__)
WINDOW = 16
"""Committed tokens for which ``oracle_perfect`` picks a draft."""


class Rounds(NamedTuple):
    """One kind of round from every position: tokens committed and seconds taken, by position."""

    tokens: list[int]
    seconds: list[float]


def oracle_results(streams: Sequence[Stream], bank: TraceBank, seed: int = 0) -> list[StreamResult]:
    """Both oracles over the same streams as the controllers; decide times are not theirs and left empty."""
    ahead = [foresee(stream, bank) for stream in streams]
    perfect_s = _best_setting_s(ahead)
    results = []
    for name in ("oracle_perfect", "oracle_clairvoyant"):
        for index, requests in enumerate(ahead):
            decode_s = perfect_s[index] if name == "oracle_perfect" else sum(map(clairvoyant_s, requests))
            results.append(_result(name, seed, index, requests, decode_s))
    return results


def _result(name: str, seed: int, index: int, requests: Sequence[Foresight], decode_s: float) -> StreamResult:
    ttft_s = tuple(request.prefill_s for request in requests)
    return StreamResult(
        controller=name,
        seed=seed,
        stream=index,
        requests=len(requests),
        tokens=sum(request.end for request in requests),
        seconds=sum(ttft_s) + decode_s,
        ttft_s=ttft_s,
        kv_hit_tokens=sum(request.reused for request in requests),
    )


def clairvoyant_s(request: Foresight) -> float:
    """Least decode time of a request: its prefill has committed the first token."""
    drafts, room = request.drafts, request.room()
    sends = np.arange(1, LONGEST + 1)
    per_round = np.array([[reach.round_s] for reach in drafts])
    per_guess = np.array([[reach.step_s] for reach in drafts])
    best = np.zeros(request.end + 1)  # best[i]: least time to commit tokens i … end - 1
    for at in range(request.end - 1, 0, -1):
        least = request.verify_s[0, at] + best[at + 1]
        if drafts:
            right = np.array([[reach.right[at]] for reach in drafts])
            made = np.array([[reach.made[at]] for reach in drafts])
            then = np.minimum(at + np.minimum(sends, right) + 1, request.end)
            total = per_round + per_guess * sends + request.verify_s[1:, at] + best[then]
            least = min(least, np.where(sends <= np.minimum(made, room[at]), total, np.inf).min())
        best[at] = least
    return float(best[min(1, request.end)])


def _best_setting_s(ahead: Sequence[Sequence[Foresight]]) -> list[float]:
    """Decode seconds by stream of the length and stop level that are best over all streams."""
    settings = [(gamma, stop) for gamma in GAMMAS for stop in range(len(STOP_LEVELS))]
    tried = [
        [sum(perfect_choice_s(request, gamma, stop) for request in requests) for requests in ahead]
        for gamma, stop in settings
    ]
    best = min(range(len(settings)), key=lambda i: sum(tried[i]))
    LOGGER.info("oracle_perfect: gamma %d, stop level %d", *settings[best])
    return tried[best]


def perfect_choice_s(request: Foresight, gamma: int, stop: int) -> float:
    """Decode seconds if the draft (or plain) with the most tokens per second over each next window is known."""
    arms = rounds_of(request, gamma, stop)
    at, seconds = 1, 0.0
    while at < request.end:
        until = min(at + WINDOW, request.end)
        options = [_walk(arm, at, until) for arm in arms]
        taken_s, then = min(options, key=lambda option: option[0] / (option[1] - at))
        at, seconds = then, seconds + taken_s
    return seconds


def rounds_of(request: Foresight, gamma: int, stop: int) -> list[Rounds]:
    """Plain rounds, then the rounds of every draft, all with the same length and stop level."""
    length = request.verify_s.shape[1]
    cap = np.minimum(gamma, request.room())
    here = np.arange(length)
    left = np.maximum(request.end - here, 1)
    arms = [Rounds([1] * length, request.verify_s[0].tolist())]
    for reach in request.drafts:
        sent = np.clip(np.minimum(reach.sent[stop], cap), 0, None)
        withheld = (reach.sent[stop] < np.minimum(reach.made, cap)).astype(np.int64)
        tokens = np.minimum(np.minimum(sent, reach.right) + 1, left)
        seconds = (
            np.where(cap >= 1, reach.round_s, 0.0) + reach.step_s * (sent + withheld) + request.verify_s[sent, here]
        )
        arms.append(Rounds(tokens.tolist(), _floats(seconds)))
    return arms


def _floats(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(value) for value in values]


def _walk(arm: Rounds, at: int, until: int) -> tuple[float, int]:
    """(seconds, position reached) of rounds of one kind until ``until`` is reached."""
    seconds = 0.0
    while at < until:
        seconds += arm.seconds[at]
        at += arm.tokens[at]
    return seconds, at
