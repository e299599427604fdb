from __future__ import annotations

from itertools import pairwise

import pytest

from agents.serving import serve
from agents.timeline import Step, Timeline, record_timeline
from runtime.control.observation import Observation
from runtime.control.static import plain_controller
from runtime.core import Decision, Outcome, Phase
from tests.agents.players import NAMES, costly_world, players
from tests.factories import make_world


@pytest.fixture(scope="module", params=["memspec", "random", "static:0:2"])
def recorded(request: pytest.FixtureRequest) -> Timeline:
    world = costly_world()
    return record_timeline(players()[request.param](), world.streams(0, 1)[0], world.session(), request.param, 3)


def test_steps_follow_each_other_and_end_with_the_stream(recorded: Timeline) -> None:
    assert recorded.steps[0].start_s == 0.0
    for before, after in pairwise(recorded.steps):
        assert before.start_s <= before.end_s == after.start_s
    assert recorded.seconds == recorded.steps[-1].end_s
    assert (recorded.stream, recorded.drafts) == (3, NAMES)


@pytest.mark.parametrize("name", ["memspec", "random"])
def test_it_tells_what_the_session_counts(name: str) -> None:
    world, make = costly_world(disk_bytes=2000), players()[name]
    stream = world.streams(0, 1)[0]
    result, texts = serve(make(), stream, world.session(), name)
    steps = record_timeline(make(), stream, world.session(), name).steps
    assert steps[-1].end_s == pytest.approx(result.seconds)
    assert sum(step.committed for step in steps) == result.tokens
    assert sum(step.drafted for step in steps) == result.drafted
    assert sum(step.accepted for step in steps) == result.accepted
    assert sum(step.stall_s for step in steps) == pytest.approx(result.stall_s)
    assert sum(step.reused_tokens for step in steps) == result.kv_hit_tokens
    assert [sum(s.committed for s in steps if s.request == index) for index in range(len(texts))] == list(
        map(len, texts)
    )


def test_every_request_is_admitted_at_0_and_decoded_from_1(recorded: Timeline) -> None:
    for index in range(4):
        steps = [step for step in recorded.steps if step.request == index]
        phases = [step.phase for step in steps]
        assert phases == [Phase.ADMIT, *[Phase.DECODE] * (len(steps) - 2), Phase.COMPLETE]
        assert steps[0].position == 0
        assert steps[0].committed == 1
        for before, after in pairwise(steps):
            assert after.position == before.position + before.committed


def test_a_round_has_a_draft_only_if_one_guessed(recorded: Timeline) -> None:
    for step in recorded.steps:
        if step.draft is None:
            assert (step.gamma, step.steps, step.drafted, step.accepted, step.catch_up_tokens) == (0, 0, 0, 0, 0)
        else:
            assert step.phase is Phase.DECODE
            assert step.accepted <= step.drafted <= step.gamma
            assert step.draft in step.resident or step.stall_s > 0.0


class Insisting:
    """The same decision, always."""

    name = "insisting"

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        return self._decision

    def learn(self, outcome: Outcome) -> None: ...


def test_memory_is_that_of_before_the_step() -> None:
    world = make_world(budget_bytes=5000)
    keeping, lookup = Insisting(Decision(prefetch=0, kv=True)), 2
    first, second, *others = record_timeline(keeping, world.streams(0, 1)[0], world.session(), "keeping").steps
    assert (first.resident, first.loading, first.kv_bytes) == ((lookup,), (), 0)
    assert (second.resident, second.loading) == ((lookup,), (0,))
    assert others[-1].resident == (0, lookup)
    completions = [step for step in others if step.phase is Phase.COMPLETE]
    assert completions[0].kv_bytes == 0
    assert completions[0].retained_tokens * 10 == next(step.kv_bytes for step in others if step.request == 1) > 0


def test_a_load_that_is_waited_for_stalls_its_step() -> None:
    world = make_world()
    waiting = Insisting(Decision(draft=0, gamma=2, wait=True))
    steps = record_timeline(waiting, world.streams(0, 1)[0], world.session(), "waiting").steps
    stalled: list[Step] = [step for step in steps if step.stall_s > 0.0]
    assert [(step.draft, step.resident) for step in stalled] == [(0, (2,))]
    assert stalled[0].stall_s == pytest.approx(0.25)


def test_an_empty_stream_takes_no_time() -> None:
    timeline = record_timeline(plain_controller(3), (), make_world().session(), "plain")
    assert (timeline.steps, timeline.seconds) == ((), 0.0)
