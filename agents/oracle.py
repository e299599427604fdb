"""Three oracles: bounds to compare with, not controllers. All are computed from traces and profile alone.

* ``oracle_perfect`` is the papers' perfect draft choice: it knows which draft (or plain) gives the most tokens per
  second over the next 16 tokens. Length and stop level are one setting for all, the best on these very streams. A
  controller that adapts its length can beat it.
* ``oracle_clairvoyant`` knows every guess of every draft and takes the least time over all drafts and lengths up to 8,
  by dynamic programming. Nothing that obeys replay can beat it.
* ``oracle_budget`` knows as much, but only drafts in memory can guess, memory holds only so many, and loads take time
  (``agents.oracle_budget``). Nothing that obeys replay under this budget can beat it.

Memory and loads cost the first two nothing, catch-up costs none of them anything. All prefill from the best prefix that
any earlier request of the stream has left, pay for restoring it, and keep prefixes for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agents.foresight import LONGEST, Floats, Foresight, Sends, foresee
from agents.oracle_budget import WorkingSets, budget_s
from agents.serving import StreamResult
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.core import GAMMAS, STOP_LEVELS
from runtime.errors import UserError

LOGGER = logging.getLogger(__name__)
WINDOW = 16
"""Committed tokens for which ``oracle_perfect`` picks a draft."""


class Rounds(NamedTuple):
    """One kind of round from every position: tokens committed and seconds taken, by position."""

    tokens: list[int]
    seconds: list[float]


def oracle_results(streams: Sequence[Stream], world: ReplayWorld, seed: int = 0) -> list[StreamResult]:
    """All oracles over the same streams as the controllers; decide times are not theirs and left empty.

    Where the budget can hold too many sets of drafts to follow, ``oracle_budget`` is left out with a warning.
    """
    ahead = [foresee(stream, world.bank) for stream in streams]
    decode_s = {
        "oracle_perfect": _best_setting_s(ahead),
        "oracle_clairvoyant": [sum(map(clairvoyant_s, requests)) for requests in ahead],
    }
    try:
        memory = WorkingSets.of(world.drafts, world.costs, world.config.memory)
        decode_s["oracle_budget"] = [budget_s(requests, memory) for requests in ahead]
    except UserError as error:
        LOGGER.warning("%s", error)
    return [
        _result(name, seed, index, requests, seconds[index])
        for name, seconds in decode_s.items()
        for index, requests in enumerate(ahead)
    ]


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
    return float(clairvoyant_values(request)[min(1, request.end)])


def clairvoyant_values(request: Foresight) -> Floats:
    """Least decode time from each position to the end, shape (end + 1,).

    Entry i is the time to commit tokens i … end - 1. Entry 0 equals entry 1: prefill commits the first token.
    """
    end = request.end
    least = np.min(Sends.of(request).least_s(), axis=0, initial=np.inf).T  # (end, LONGEST + 1)
    least[:, 0] = np.minimum(least[:, 0], request.verify_s[0, :end])
    best = np.zeros(end + LONGEST + 1)
    for at in range(end - 1, 0, -1):
        best[at] = (least[at] + best[at + 1 : at + LONGEST + 2]).min()
    best[0] = best[min(1, end)]
    return best[: end + 1]


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
        tokens = np.minimum(np.minimum(sent, reach.right) + 1, left)
        seconds = np.where(cap >= 1, reach.round_s, 0.0) + reach.step_s * sent + request.verify_s[sent, here]
        arms.append(Rounds(tokens.tolist(), _floats(seconds)))
    return arms


def _floats(values: Floats) -> list[float]:
    return [float(value) for value in values]


def _walk(arm: Rounds, at: int, until: int) -> tuple[float, int]:
    """(seconds, position reached) of rounds of one kind until ``until`` is reached."""
    seconds = 0.0
    while at < until:
        seconds += arm.seconds[at]
        at += arm.tokens[at]
    return seconds, at
