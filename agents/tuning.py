"""Tuning: the best length and stop level of a heuristic, on training streams only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agents.evaluation import serve
from envs.workload import Stream
from runtime.control.base import Controller
from runtime.core import GAMMAS, STOP_LEVELS
from runtime.session import DecodeSession


class Trial(NamedTuple):
    """One setting and the total tokens per second it gave."""

    gamma: int
    stop: int
    tokens_per_s: float


def tune(
    make: Callable[[int, int], Controller],
    streams: Sequence[Stream],
    make_session: Callable[[], DecodeSession],
    gammas: Sequence[int] = GAMMAS,
    stops: Sequence[int] = tuple(range(len(STOP_LEVELS))),
) -> tuple[Trial, tuple[Trial, ...]]:
    """Try every length with every stop level.

    Args:
        make: Builds a controller from (gamma, stop level).
        streams: Training streams, a handful.
        make_session: A fresh session with empty memory.
        gammas: Lengths to try.
        stops: Stop levels to try.

    Returns:
        The fastest setting (the first of equals) and all of them.

    Raises:
        ValueError: If there is nothing to try or to try it on.
    """
    if not streams or not gammas or not stops:
        raise ValueError(f"expected streams and settings, got {len(streams)} streams, {gammas} and {stops}")
    trials = tuple(
        Trial(gamma, stop, _tokens_per_s(make(gamma, stop), streams, make_session))
        for gamma in gammas
        for stop in stops
    )
    return max(trials, key=lambda trial: trial.tokens_per_s), trials


def _tokens_per_s(
    controller: Controller, streams: Sequence[Stream], make_session: Callable[[], DecodeSession]
) -> float:
    results = [serve(controller, stream, make_session(), controller.name)[0] for stream in streams]
    return sum(result.tokens for result in results) / sum(result.seconds for result in results)
