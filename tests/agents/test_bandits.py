from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from agents.bandits import DraftBandit, EpsilonGreedyController, Exp3Controller, ThompsonController, UcbController
from envs.traces import TraceSet
from envs.workload import WorkloadConfig
from envs.world import ReplayWorld, WorldConfig
from runtime.core import Decision, DraftSpec, Outcome, Phase
from runtime.session import DecodeSession
from tests.factories import make_costs, make_memory_config, make_specs, make_traces

NAMES = ("code", "math", "lookup")


def one_topic_world(budget_bytes: int = 5000, specs: tuple[DraftSpec, ...] | None = None) -> ReplayWorld:
    """Texts of draft 1's domain only."""
    traces = make_traces(NAMES, prompts=12, length=80)
    only = tuple(trace for trace in traces.traces if trace.domain == "math")
    return ReplayWorld(
        TraceSet(traces.target, traces.drafts, traces.eos_ids, only), specs or make_specs(NAMES), make_costs(NAMES),
        None, WorldConfig(make_memory_config(budget_bytes)), WorkloadConfig(requests=6), "train",
    )  # fmt: skip


def run(session: DecodeSession, bandit: DraftBandit, world: ReplayWorld) -> list[Outcome]:
    bandit.begin_stream()
    session.start(item.request for item in world.streams(0, 1)[0])
    outcomes: list[Outcome] = []
    while not outcomes or not outcomes[-1].stream_finished:
        outcomes.append(session.advance(bandit.decide(session.observe())))
        bandit.learn(outcomes[-1])
    return outcomes


BANDITS = [
    EpsilonGreedyController(3, 4, epsilon=0.3),
    UcbController(3, 4),
    Exp3Controller(3, 4),
    ThompsonController(3, 4),
]


@pytest.mark.parametrize("bandit", BANDITS, ids=lambda bandit: bandit.name)
def test_bandit_learns_the_better_arm(bandit: DraftBandit) -> None:
    world = one_topic_world()
    outcomes = [o for o in run(world.session(), bandit, world) if o.phase is Phase.DECODE]
    late = Counter(outcome.decision.draft for outcome in outcomes[len(outcomes) // 2 :])
    assert late.most_common(1)[0][0] == 1


@pytest.mark.parametrize("bandit", BANDITS, ids=lambda bandit: bandit.name)
def test_bandit_stalls_for_what_is_not_there_and_keeps_an_arm_for_an_interval(bandit: DraftBandit) -> None:
    world = one_topic_world()
    session = world.session()
    outcomes = [o for o in run(session, bandit, world) if o.phase is Phase.DECODE]
    first = outcomes[0]
    assert first.decision.wait and first.stall_s == pytest.approx(0.25)
    assert session.counters.stall_s > 0.0
    assert session.counters.illegal == 0
    for begin in range(0, 12, 4):
        assert len({outcome.decision.draft for outcome in outcomes[begin : begin + 4]}) == 1


def test_epsilon_greedy_starts_with_the_best_draft_of_training() -> None:
    specs = (DraftSpec("code", 1000, expected=0.3), DraftSpec("math", 1000, expected=0.6), make_specs()[2])
    world = one_topic_world(specs=specs)
    outcomes = run(world.session(), EpsilonGreedyController(3, 4), world)
    assert next(o for o in outcomes if o.phase is Phase.DECODE).decision.draft == 1


def test_an_arm_that_never_fits_is_given_up() -> None:
    specs = (DraftSpec("code", 10_000, expected=0.9), *make_specs()[1:])
    world = one_topic_world(specs=specs)
    bandit = UcbController(3, 4)
    session = world.session()
    run(session, bandit, world)
    assert bandit._usable == {1, 2}
    assert session.counters.illegal == 0


@pytest.mark.parametrize("bandit", BANDITS, ids=lambda bandit: bandit.name)
def test_every_arm_is_pulled_once_first(bandit: DraftBandit) -> None:
    world = one_topic_world()
    outcomes = [o for o in run(world.session(), bandit, world) if o.phase is Phase.DECODE]
    assert [outcomes[begin].decision.draft for begin in (0, 4, 8)] == [0, 1, 2]


def test_ucb_follows_its_formula() -> None:
    bandit = UcbController(2, 1, exploration=1.0)
    bandit._paid, bandit._pulls, bandit._best_pay = [9.0, 4.0], [9.0, 4.0], 1.0
    assert bandit._choose([0, 1]) == 1  # equal means: the rarer arm
    bandit._paid = [9.0, 0.8]
    values = [bandit._value(a) + np.sqrt(2 * np.log(13) / bandit._pulls[a]) for a in (0, 1)]
    assert bandit._choose([0, 1]) == int(np.argmax(values))


def test_a_stall_is_not_part_of_the_pay() -> None:
    bandit = UcbController(2, 1)
    bandit._arm = 0
    bandit.learn(Outcome(Phase.DECODE, Decision(0, 1), 1.5, 1.0, stall_s=0.5, tokens=(1, 2)))
    bandit._close_pull()
    assert bandit._best_pay == 2.0


def test_begin_stream_forgets() -> None:
    bandit = UcbController(2, 1)
    bandit._arm = 0
    bandit.learn(Outcome(Phase.DECODE, Decision(0, 1), 1.0, 1.0, tokens=(1, 2)))
    bandit._close_pull()
    assert bandit._best_pay == 2.0
    bandit.begin_stream()
    assert bandit._best_pay == 0.0 and bandit._pulls == [0.0, 0.0]


def test_bandits_refuse_bad_settings() -> None:
    with pytest.raises(ValueError, match="epsilon: expected a probability, got 2"):
        EpsilonGreedyController(2, 1, epsilon=2.0)
    with pytest.raises(ValueError, match="memory: expected a weight above 0"):
        UcbController(2, 1, memory=0.0)
    with pytest.raises(ValueError, match="interval: expected at least 1 round"):
        UcbController(2, 1, interval=0)
    with pytest.raises(ValueError, match="exploration: expected at least 0"):
        UcbController(2, 1, exploration=-1.0)
    with pytest.raises(ValueError, match="at least one draft"):
        UcbController(0, 1)
