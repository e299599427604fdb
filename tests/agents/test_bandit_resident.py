from __future__ import annotations

from collections.abc import Callable

import pytest

from agents.bandits import DraftBandit, EpsilonGreedyController, Exp3Controller, ThompsonController, UcbController
from agents.bandits.working_set import WorkingSet, able_drafts
from agents.hedge import HedgeController
from runtime.control.observation import Observation
from runtime.core import Decision, Outcome, Phase
from tests.agents.made_up import FOUR_SPECS, four_world, observe, run

EVERY = pytest.mark.parametrize(
    "kind",
    [EpsilonGreedyController, UcbController, Exp3Controller, ThompsonController],
    ids=lambda kind: kind.__name__,
)
NOTHING = [0.0, 0.0, 0.0, 1.0]
SIZES = [draft.bytes / 2500 for draft in FOUR_SPECS]
EXPECTED = [draft.expected for draft in FOUR_SPECS]


def arriving(resident: list[float], free: float, phase: Phase = Phase.DECODE, **values: float) -> Observation:
    """What is seen where prefetching may be decided."""
    seen: dict[str, float | list[float]] = {
        "may_prefetch": 1.0, "size_share": SIZES, "acceptance": EXPECTED, "weightless": [0.0, 0.0, 0.0, 1.0],
        "resident": resident, "free_share": free,
    }  # fmt: skip
    return observe(4, phase, **{**seen, **values})


@EVERY
def test_never_waits_and_never_gives_up_its_set(kind: Callable[..., DraftBandit]) -> None:
    session, rounds = run(kind(4, 4, resident_only=True), four_world())
    counters = session.counters
    assert (counters.loads, counters.evictions, counters.illegal, counters.stall_s) == (2, 0, 0, 0.0)
    assert not any(outcome.decision.wait for outcome in rounds)
    assert [session.memory.resident(draft) for draft in range(4)] == [False, True, True, True]
    assert {outcome.decision.draft for outcome in rounds[-100:]} >= {1, 2}
    assert {outcome.decision.draft for outcome in rounds} <= {None, 1, 2, 3}


@EVERY
def test_loading_on_demand_does_wait(kind: Callable[..., DraftBandit]) -> None:
    session, _ = run(kind(4, 4), four_world())
    assert session.counters.stall_s > 0.0
    assert session.counters.evictions > 0


@EVERY
def test_is_named_for_it(kind: Callable[..., DraftBandit]) -> None:
    assert kind(2, 1, resident_only=True).name == f"{kind(2, 1).name}_resident"


@EVERY
def test_learns_the_better_arm_of_its_set(kind: Callable[..., DraftBandit]) -> None:
    _, rounds = run(kind(4, 4, resident_only=True), four_world(domain="story"))
    late = [outcome.decision.draft for outcome in rounds[len(rounds) // 2 :]]
    assert late.count(2) > 2 * late.count(1)


@pytest.mark.parametrize("controller", [UcbController(4, 1, resident_only=True), HedgeController(4, 1)])
def test_every_stream_has_a_set_of_its_own(controller: UcbController | HedgeController) -> None:
    controller.begin_stream()
    assert controller.decide(arriving(NOTHING, 0.4)).prefetch == 1
    assert controller.decide(arriving(NOTHING, 0.4, acceptance=0.0)).prefetch == 1
    controller.begin_stream()
    assert controller.decide(arriving(NOTHING, 0.4, acceptance=0.0)).prefetch == 0


def test_an_arm_that_was_given_up_is_left_at_once() -> None:
    bandit = UcbController(2, 1, interval=8, resident_only=True)
    assert bandit.decide(observe(2, acceptance=[0.9, 0.1])).draft == 0
    after = bandit.decide(observe(2, acceptance=[0.9, 0.1], resident=[0.0, 1.0]))
    assert (after.draft, after.wait) == (1, False)


def test_decodes_plainly_while_nothing_can_guess() -> None:
    bandit = UcbController(2, 1, resident_only=True)
    assert bandit.decide(observe(2, resident=[0.0, 0.0])).draft is None
    bandit.learn(Outcome(Phase.DECODE, Decision(), 1.0, 1.0, tokens=(1,)))
    assert bandit._usable == {0, 1} and bandit._pulls == [0.0, 0.0]


def test_a_look_up_is_an_arm_only_where_its_guess_would_be_sent() -> None:
    def able(confidence: float, stop: int) -> list[int]:
        return able_drafts(observe(2, weightless=[0.0, 1.0], confidence=[0.0, confidence]), 2, stop)

    assert able(0.0, stop=0) == [0]
    assert able(0.1, stop=0) == [0, 1]
    assert able(0.3, stop=1) == [0, 1]
    assert able(0.3, stop=2) == [0]


def test_the_set_is_the_best_that_fit() -> None:
    chosen = WorkingSet(4)
    assert chosen.wanted(arriving(NOTHING, 0.8, may_prefetch=0.0)) is None
    assert not chosen.members
    assert chosen.wanted(arriving(NOTHING, 0.8)) == 1
    assert chosen.members == (1, 2)  # they fit exactly
    assert chosen.wanted(arriving([0.0, 1.0, 0.0, 1.0], 0.4)) == 2
    assert chosen.wanted(arriving([0.0, 1.0, 1.0, 1.0], 0.8)) is None
    chosen.begin_stream()
    assert not chosen.members


def test_a_resident_draft_stays_and_takes_its_place() -> None:
    chosen = WorkingSet(4)
    assert chosen.wanted(arriving([1.0, 0.0, 0.0, 1.0], 0.4)) == 1
    assert chosen.members == (1, 0)


def test_stored_kv_gives_way_to_a_member_but_not_where_it_is_about_to_be_used() -> None:
    chosen = WorkingSet(4)
    assert chosen.wanted(arriving(NOTHING, 0.1, kv_share=0.4)) == 1
    assert chosen.wanted(arriving(NOTHING, 0.1, Phase.ADMIT, kv_share=0.4, usable_prefix_tokens=32.0)) is None
    assert chosen.wanted(arriving(NOTHING, 0.1, Phase.ADMIT, kv_share=0.4)) == 1


def test_a_lost_member_comes_back_only_into_room() -> None:
    chosen = WorkingSet(4)
    chosen.wanted(arriving(NOTHING, 0.8))
    assert chosen.wanted(arriving([0.0, 0.0, 1.0, 1.0], 0.3)) is None
    assert chosen.wanted(arriving([0.0, 0.0, 1.0, 1.0], 0.4)) == 1
