"""Observations and pay that a test makes up, for controllers that choose drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agents.serving import serve
from envs.traces import TraceSet
from envs.workload import WorkloadConfig
from envs.world import ReplayWorld, WorldConfig
from runtime.control.action import ActionCodec
from runtime.control.base import Controller
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, Observation, P
from runtime.core import Decision, DraftSpec, Outcome, Phase, Round
from runtime.session import DecodeSession
from tests.factories import make_costs, make_memory_config, make_traces

FOUR = ("code", "math", "story", "lookup")
FOUR_SPECS = (
    DraftSpec("code", 1000, expected=0.2),
    DraftSpec("math", 1000, expected=0.6),
    DraftSpec("story", 1000, expected=0.4),
    DraftSpec("lookup", 0, loadable=False, expected=0.1),
)


def observe(n: int = 3, phase: Phase = Phase.DECODE, /, **values: float | Sequence[float]) -> Observation:
    """A round with all drafts resident and everything legal, but for what is named: a number, or one for each draft."""
    vector = np.zeros(G + n * P, dtype=np.float32)
    rows = vector[G:].reshape(n, P)
    for name, value in {"room_tokens": 50.0, "resident": [1.0] * n, "acceptance": [0.5] * n, **values}.items():
        if name in GLOBAL_INDEX:
            vector[GLOBAL_INDEX[name]] = value
        else:
            rows[:, DRAFT_INDEX[name]] = value
    codec = ActionCodec(n)
    mask = np.ones(codec.offsets[-1], dtype=np.bool_)
    for draft in np.flatnonzero(rows[:, DRAFT_INDEX["resident"]] == 0.0):
        mask[1 + draft * 4 : 5 + draft * 4] = False
    for draft in np.flatnonzero(rows[:, DRAFT_INDEX["resident"]]):
        mask[codec.offsets[2] + 1 + draft] = False
    return Observation(phase, vector, mask)


def play(controller: Controller, pay: Callable[[int], Sequence[float]], rounds: int) -> list[int]:
    """Rounds of one token, all drafts resident; in round r draft d takes ``1 / pay(r)[d]`` seconds. Who guessed."""
    chosen = []
    for index in range(rounds):
        draft = controller.decide(observe()).draft
        assert draft is not None
        done = Round((1,), drafted=1)
        controller.learn(
            Outcome(Phase.DECODE, Decision(draft, 1), 1.0 / pay(index)[draft], 1.0, round=done, tokens=(1,))
        )
        chosen.append(draft)
    return chosen


def four_world(budget_bytes: int = 2500, domain: str | None = None) -> ReplayWorld:
    """Three drafts and the look-up, room for two; texts of all domains or of one."""
    traces = make_traces(FOUR, prompts=12, length=80)
    chosen = tuple(trace for trace in traces.traces if domain in (None, trace.domain))
    return ReplayWorld(
        TraceSet(traces.target, traces.drafts, traces.eos_ids, chosen), FOUR_SPECS, make_costs(FOUR), None,
        WorldConfig(make_memory_config(budget_bytes)), WorkloadConfig(requests=8), "train",
    )  # fmt: skip


def run(controller: Controller, world: ReplayWorld) -> tuple[DecodeSession, list[Outcome]]:
    """One stream; the session after it, and what its rounds did."""
    session, rounds = world.session(), []
    controller.begin_stream()
    session.start(item.request for item in world.streams(0, 1)[0])
    finished = False
    while not finished:
        outcome = session.advance(controller.decide(session.observe()))
        controller.learn(outcome)
        rounds += [outcome] if outcome.phase is Phase.DECODE else []
        finished = outcome.stream_finished
    return session, rounds


def seconds(controller: Controller, world: ReplayWorld) -> float:
    """Time of one stream whose texts are right."""
    result, _ = serve(controller, world.streams(1, 1)[0], world.session(), controller.name)
    assert result.identical
    return result.seconds
