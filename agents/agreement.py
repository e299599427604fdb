"""Does replay predict the device? The decisions of a live run, played again on the virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agents.evaluation import tokens_per_s
from agents.serving import StreamResult, serve
from envs.workload import Stream
from runtime.control.base import Controller
from runtime.control.observation import Observation
from runtime.core import PLAIN, Decision, Outcome, Phase
from runtime.files import write_json
from runtime.session import DecodeSession

if TYPE_CHECKING:
    from agents.pieces import Piece

AGREEMENT_SCHEMA = 2
"""2: ``kendall_tau`` and ``tokens_per_s``."""
SAME_SPEED = 0.01
"""Speeds that differ by no more than this share are taken for the same."""


class Agreement(NamedTuple):
    """Seconds of the same decisions, live and predicted."""

    controller: str
    live_s: float
    replay_s: float


class RecordingController:
    """Passes decisions through and keeps them, as carried out, by stream and request."""

    def __init__(self, inner: Controller) -> None:
        self.name = inner.name
        self._inner = inner
        self.streams: list[list[list[Decision]]] = []

    def begin_stream(self) -> None:
        self._inner.begin_stream()
        self.streams.append([])

    def decide(self, observation: Observation) -> Decision:
        if observation.phase is Phase.ADMIT:
            self.streams[-1].append([])
        return self._inner.decide(observation)

    def learn(self, outcome: Outcome) -> None:
        self.streams[-1][-1].append(outcome.decision)
        self._inner.learn(outcome)


class ScriptedController:
    """Takes recorded decisions again. A draft whose load is not through yet is waited for, as time may differ a bit."""

    def __init__(self, name: str, requests: Sequence[Sequence[Decision]]) -> None:
        self.name = name
        self._requests = iter(requests)
        self._decisions: list[Decision] = []

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        if observation.phase is Phase.ADMIT:
            self._decisions = list(next(self._requests))
        if observation.phase is Phase.COMPLETE:
            return self._decisions[-1]
        if not self._decisions:
            return PLAIN
        decision = self._decisions.pop(0) if len(self._decisions) > 1 else PLAIN
        return decision._replace(wait=decision.draft is not None)

    def learn(self, outcome: Outcome) -> None: ...


def agreements(
    pieces: Mapping[str, Sequence[Piece]], streams: Sequence[Stream], make_session: Callable[[], DecodeSession]
) -> list[Agreement]:
    """Seconds of every controller's live streams, and of the same decisions on replay."""
    found = []
    for name, served in pieces.items():
        replay_s = sum(
            serve(ScriptedController(name, piece.decisions), stream, make_session(), name)[0].seconds
            for piece, stream in zip(served, streams, strict=True)
        )
        found.append(Agreement(name, sum(piece.result.seconds for piece in served), replay_s))
    return found


def order_agreement(live: Sequence[StreamResult], replayed: Sequence[StreamResult]) -> float:
    """Kendall's tau-b of the controllers' speeds, live against replay: 1 = the same order, -1 = the reverse.

    Source: Kendall 1945, "The treatment of ties in ranking problems"; speeds within ``SAME_SPEED`` are tied.
    """
    names = sorted({result.controller for result in live} & {result.controller for result in replayed})
    pairs = [(_speed(live, name), _speed(replayed, name)) for name in names]
    agree = live_ties = replay_ties = compared = 0
    for first, second in combinations(pairs, 2):
        a, b = (_sign(x, y) for x, y in zip(first, second, strict=True))
        agree += a * b
        live_ties += a == 0
        replay_ties += b == 0
        compared += 1
    untied = (compared - live_ties) * (compared - replay_ties)
    return agree / math.sqrt(untied) if untied else 1.0


def _speed(results: Sequence[StreamResult], name: str) -> float:
    return tokens_per_s([result for result in results if result.controller == name])


def _sign(a: float, b: float) -> int:
    return 0 if abs(a / b - 1.0) <= SAME_SPEED else 1 if a > b else -1


def write_agreement(
    folder: Path, found: Sequence[Agreement], live: Sequence[StreamResult], replayed: Sequence[StreamResult]
) -> None:
    """Say on the console and in ``replay_agreement.json`` how well replay predicts the device.

    Args:
        folder: Where the file goes.
        found: Seconds of the same decisions.
        live: What the controllers did on the device.
        replayed: What they do on replay, deciding for themselves.
    """
    live_s, replay_s = sum(each.live_s for each in found), sum(each.replay_s for each in found)
    tau = order_agreement(live, replayed)
    names = [each.controller for each in found]
    write_json(
        folder / "replay_agreement.json",
        {
            "schema": AGREEMENT_SCHEMA,
            "live_s": live_s,
            "replay_s": replay_s,
            "ratio": replay_s / live_s,
            "kendall_tau": tau,
            "controllers": [each._asdict() for each in found],
            "tokens_per_s": {name: {"live": _speed(live, name), "replay": _speed(replayed, name)} for name in names},
        },
    )
    print(
        f"replay of the same decisions: {replay_s:.1f} s predicted, {live_s:.1f} s live, ratio "
        f"{replay_s / live_s:.3f}; order of the controllers: Kendall's tau {tau:.2f}"
    )
