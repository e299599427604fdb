"""Does replay predict the device? The decisions of a live run, played again on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agents.evaluation import StreamResult, serve
from envs.workload import Stream
from runtime.control.base import Controller
from runtime.control.observation import Observation
from runtime.core import PLAIN, Decision, Outcome, Phase
from runtime.session import DecodeSession


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


def replay_agreement(
    name: str,
    recorder: RecordingController,
    streams: Sequence[Stream],
    make_session: Callable[[], DecodeSession],
    results: Sequence[StreamResult],
) -> Agreement:
    """Seconds of one controller's live streams, and of its decisions on replay."""
    live_s = sum(result.seconds for result in results if result.controller == name)
    replay_s = sum(
        serve(ScriptedController(name, requests), stream, make_session(), name)[0].seconds
        for requests, stream in zip(recorder.streams, streams, strict=True)
    )
    return Agreement(name, live_s, replay_s)
