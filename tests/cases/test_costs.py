"""Time decides, acceptance does not; and time is taken with the device at rest and warm."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from envs.world import ReplayWorld
from runtime import timing
from runtime.control.rakv_asd import RakvAsdController
from runtime.core import GAMMAS, PLAIN, Decision, MemoryConfig, Outcome, Phase, Request
from runtime.live import open_models, open_session
from runtime.profile import CostModel, Curve, DraftCost
from runtime.session import DecodeSession
from tests.factories import NAMES, make_profile, make_traces, make_world
from tests.tiny_zoo import TinyZoo

CODE = 0


def world_of(step_s: float, verify_s: float = 0.18) -> ReplayWorld:
    """The made-up world with drafts that are always right, and other prices of a guess and of a wide forward."""
    traces = make_traces()
    perfect = tuple(
        dataclasses.replace(
            trace,
            drafts=tuple(
                dataclasses.replace(
                    draft,
                    match=np.ones_like(draft.match),
                    start=np.zeros_like(draft.start),
                    run_on=draft.run_on[:0],
                )
                for draft in trace.drafts
            ),
        )
        for trace in traces.traces
    )
    profile = make_profile()
    cost = DraftCost(Curve((1.0, 101.0), (step_s, step_s + 0.1)), 0.25, 1000, 2)
    profile = dataclasses.replace(
        profile,
        forward=Curve((1.0, 9.0), (0.1, verify_s)),
        drafts={name: profile.drafts[name] if name == "lookup" else cost for name in NAMES},
    )
    return dataclasses.replace(
        make_world(), traces=dataclasses.replace(traces, traces=perfect), costs=CostModel(profile, NAMES)
    )


def rounds_of(session: DecodeSession, decision: Decision, count: int = 6) -> list[Outcome]:
    return [session.advance(decision) for _ in range(count)]


def begun(world: ReplayWorld) -> DecodeSession:
    session = world.session()
    session.start(item.request for item in world.streams(0, 1)[0])
    session.advance(PLAIN)
    session.advance(Decision(draft=CODE, gamma=1, wait=True))  # loaded, and its catch-up is paid
    return session


@pytest.mark.parametrize(("step_s", "verify_s", "pays"), [(0.01, 0.18, True), (0.2, 0.18, False), (0.01, 1.2, False)])
def test_the_reward_of_accepted_guesses_is_the_time_they_saved(step_s: float, verify_s: float, pays: bool) -> None:
    """llama.cpp #3919, #25908, transformers #36337: all guesses accepted, and slower than plain decoding."""
    world = world_of(step_s, verify_s)
    session, env = begun(world), world.env()
    env._session = session
    for outcome in rounds_of(session, Decision(draft=CODE, gamma=4)):
        assert outcome.round is not None and outcome.round.accepted == outcome.round.drafted == 4
        saved_s = 5 * 0.1 - (outcome.seconds - outcome.stall_s)
        assert env.reward(outcome) == pytest.approx(saved_s / 0.1)
        assert (env.reward(outcome) > 0.0) is pays
    plain = session.advance(PLAIN)
    assert env.reward(plain) == pytest.approx(0.0)


@pytest.mark.parametrize(("step_s", "verify_s", "pays"), [(0.01, 0.18, True), (0.2, 0.18, False), (0.01, 1.2, False)])
def test_measured_costs_decide_whether_to_guess(step_s: float, verify_s: float, pays: bool) -> None:
    """llama.cpp #25908: a high acceptance does not mean that guessing pays."""
    world = world_of(step_s, verify_s)
    session = begun(world)
    session._evidence.acceptance[CODE] = 0.9
    controller = RakvAsdController(len(NAMES), CODE, world.costs)
    assert (controller.best_gamma(session.observe()) > 0) is pays


def test_plain_decoding_is_always_legal_and_the_context_is_seen() -> None:
    """transformers #36337: length 0 must be a choice. vllm #4565, #17984, #48627, #35301, llama.cpp #10290: the best
    length depends on the context, not on the batch alone.
    """
    world = make_world()
    session = world.session()
    session.start(item.request for item in world.streams(0, 1)[0])
    generated = turn = 0
    finished = False
    while not finished:
        observation = session.observe()
        assert session.request is not None
        if observation.phase is Phase.ADMIT:
            generated = 0
        assert observation.mask[0], "plain decoding"
        assert observation.value("prompt_tokens") == len(session.request.prompt_ids)
        assert observation.value("context_tokens") == len(session.request.prompt_ids) + generated
        turn += 1
        outcome = session.advance(Decision(draft=CODE, gamma=GAMMAS[turn % 4], wait=bool(turn % 3)))
        generated += outcome.committed
        finished = outcome.stream_finished
    assert turn > 20


# -- timing ------------------------------------------------------------------------------------------------------------


class Device:
    """Work is queued and takes its time only when somebody waits for it, as on an accelerator."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.queued_s = 0.0
        self.runs = 0

    def perf_counter(self) -> float:
        return self.now_s

    def work(self) -> None:
        self.runs += 1
        self.queued_s += 5.0 if self.runs <= timing.WARM_UP else 1.0  # slow while it is cold

    def synchronize(self) -> None:
        self.now_s += self.queued_s
        self.queued_s = 0.0


def test_timing_waits_for_the_device_on_both_sides_and_discards_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch #27902: times without synchronising, or with the first runs in them, misled."""
    device = Device()
    monkeypatch.setattr(timing, "time", device)

    def leave_work_behind(_: int) -> None:
        device.queued_s += 100.0

    found = timing.timed({1: device.work}, 6, device.synchronize, leave_work_behind)
    assert device.runs == 6 + timing.WARM_UP
    assert found[1] == (1.0, 0.0)


def test_every_step_of_a_session_is_timed_with_the_device_at_rest(
    tiny_zoo: TinyZoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytorch #27902: the clock of a real session asks the target's device to finish before it reads the time."""
    models = open_models(tiny_zoo.zoo, threads=1)
    waited = 0

    def wait() -> None:
        nonlocal waited
        waited += 1

    monkeypatch.setattr(models.target, "synchronize", wait)
    costs = CostModel(make_profile(tiny_zoo.zoo.draft_names), tiny_zoo.zoo.draft_names)
    with open_session(models, MemoryConfig(1 << 20), costs, 64, 4) as session:
        session.start([Request("r", (5, 17, 3), 4)])
        for _ in range(3):
            before = waited
            session.advance(PLAIN)
            assert waited >= before + 2  # at the beginning and at the end


def test_the_first_runs_do_not_count_even_as_outliers(monkeypatch: pytest.MonkeyPatch) -> None:
    device, seen = Device(), list[list[float]]()
    median_of = timing.median_of
    monkeypatch.setattr(timing, "time", device)

    def watching(samples: list[float]) -> timing.Timed:
        seen.append(samples)
        return median_of(samples)

    monkeypatch.setattr(timing, "median_of", watching)
    timing.timed({1: device.work}, 6, device.synchronize)
    assert seen == [[1.0] * 6]
