"""The guard's promise, on replayed devices that are and are not what the profile says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.random_controller import RandomController
from benchmarks.worst_controller import WorstController
from envs.world import ReplayWorld
from runtime.control.base import Controller
from runtime.control.factory import guard as make_guard
from runtime.control.floor import ALLOWED_SHARE, WINDOW_TOKENS
from runtime.control.guarded import GuardedController
from runtime.control.static import StaticController, plain_controller
from runtime.core import Outcome
from runtime.profile import CostModel, Curve, Profile
from tests.factories import NAMES, make_costs, make_profile, make_specs, make_world

N = len(NAMES)
TOKENS = 4000


def random_controller() -> Controller:
    return RandomController(make_specs(), 0, wait=0.0)


def worst_controller() -> Controller:
    return WorstController(make_specs())


def dearer(profile: Profile, times: float) -> Profile:
    """The same device, its drafts ``times`` as slow."""
    drafts = {
        name: replace(cost, forward=Curve(cost.forward.x, tuple(times * s for s in cost.forward.seconds)))
        for name, cost in profile.drafts.items()
    }
    return replace(profile, drafts=drafts)


def on_device(costs: CostModel) -> ReplayWorld:
    """The small world on a device with these costs; loads disturb decoding."""
    drafts = tuple(replace(spec, calibration=(1.0, -1.0)) for spec in make_specs())  # about right for these texts
    return replace(
        make_world(requests=10), drafts=drafts, costs=CostModel(replace(costs.profile, decode_slowdown=1.3), NAMES)
    )


def outcomes(
    world: ReplayWorld, controller: Controller, tokens: int = TOKENS, believed: CostModel | None = None
) -> Iterator[Outcome]:
    """Steps of a long-lived session, stream after stream; ``believed`` is its profile, if the device is another."""
    session, seed = world.session(), 0
    session.costs = believed or session.costs
    while session.counters.committed < tokens:
        controller.begin_stream()
        session.start(item.request for item in world.generator.stream(0, seed))
        seed += 1
        done = False
        while not done:
            outcome = session.advance(controller.decide(session.observe()))
            controller.learn(outcome)
            yield outcome
            done = outcome.stream_finished


def worst_ratio(steps: list[Outcome], window: int = WINDOW_TOKENS) -> float:
    """Greatest time / plain decoding's over runs of at least ``window`` tokens."""
    tokens = np.cumsum([0, *(step.committed for step in steps)])
    seconds = np.cumsum([0.0, *(step.seconds for step in steps)])
    plain = np.cumsum([0.0, *(step.plain_seconds for step in steps)])
    ratios = []
    for begin in range(len(steps)):
        end = int(np.searchsorted(tokens, tokens[begin] + window))
        if end >= len(tokens):
            break
        ratios.append(float((seconds[end] - seconds[begin]) / (plain[end] - plain[begin])))
    return max(ratios)


def guarded(inner: Controller, costs: CostModel) -> GuardedController:
    return make_guard(inner, make_specs(), costs)


@pytest.mark.parametrize(
    ("make", "times"), [(random_controller, 8.0), (worst_controller, 4.0), (worst_controller, 8.0)]
)
def test_never_two_percent_slower_than_plain(make: Callable[[], Controller], times: float) -> None:
    """Where drafts cost several times what the profile says."""
    costs = make_costs()
    world = on_device(CostModel(dearer(costs.profile, times), NAMES))
    assert worst_ratio(list(outcomes(world, make()))) > 1.0 + ALLOWED_SHARE, "unguarded it breaks the promise"
    guard = guarded(make(), costs)
    assert worst_ratio(list(outcomes(world, guard))) <= 1.0 + ALLOWED_SHARE
    assert guard.counters.floor_rounds > 0


def test_a_good_controller_is_let_alone() -> None:
    costs = make_costs()
    alone = list(outcomes(on_device(costs), StaticController(N, 0, 2, 2)))
    guard = guarded(StaticController(N, 0, 2, 2), costs)
    steps = list(outcomes(on_device(costs), guard))
    seconds, before = sum(step.seconds for step in steps), sum(step.seconds for step in alone)
    assert seconds <= 1.03 * before
    assert guard.counters.probes <= 0.02 * len(steps) + 5


def test_plain_decoding_is_left_as_it_is() -> None:
    costs = make_costs()
    guard = guarded(plain_controller(N), costs)
    assert all(step.decision.draft is None for step in outcomes(on_device(costs), guard, 500))
    assert guard.lost_steps == 0.0
    assert guard.counters.probes == guard.counters.floor_rounds == 0


def test_a_slower_device_is_not_taken_for_a_bad_controller() -> None:
    """Everything takes twice as long: the controller is as good as before."""
    costs = make_costs()
    slow = make_profile()
    twice = {
        field: Curve(curve.x, tuple(2.0 * s for s in curve.seconds))
        for field, curve in (("forward", slow.forward), ("decode", slow.decode), ("prefill", slow.prefill))
    }
    world = on_device(CostModel(replace(dearer(slow, 2.0), **twice), NAMES))  # type: ignore[arg-type]
    guard = guarded(StaticController(N, 0, 2, 2), costs)
    steps = list(outcomes(world, guard, believed=costs))
    speculative = sum(step.decision.draft is not None for step in steps if step.round is not None)
    assert speculative > 0.9 * sum(step.round is not None for step in steps)
    assert guard.counters.fallbacks == 0


def test_drifted_costs_make_the_heuristic_decide_and_the_policy_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """Costs drift, then the device is as it was."""
    costs = make_costs()
    guard = GuardedController(StaticController(N, 0, 8, 0), plain_controller(N), costs)
    list(outcomes(on_device(CostModel(dearer(costs.profile, 4.0), NAMES)), guard, 2500))
    assert guard.counters.fallbacks >= 1
    assert guard.reason is not None and "times the time of the profile" in guard.reason
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, "it is said once"
    for _ in outcomes(on_device(costs), guard, 20_000):
        if not guard.falling_back and guard.reason is None:
            break
    assert guard.reason is None
    assert not guard.falling_back
