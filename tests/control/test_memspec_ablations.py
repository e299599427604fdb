"""MemSpec without memory management waits; without prediction it goes by what was seen."""

from __future__ import annotations

from agents.serving import serve
from runtime.control.memspec import MemSpecController
from runtime.control.memspec_ablations import MemSpecNoMemoryController, MemSpecNoPredictionController
from runtime.core import Phase
from tests.control.observing import N, outcome, see
from tests.factories import make_specs, make_world

AWAY = (0.0, 1.0, 1.0)
"""Draft 0 is not resident."""


def test_without_memory_management_the_best_draft_is_waited_for() -> None:
    seen = see(drafts={"resident": AWAY, "predicted": (0.9, 0.5, 0.1)})
    demanding, falling_back = MemSpecNoMemoryController(N, 4, 1), MemSpecController(N, 4, 1)
    decision = demanding.decide(seen)
    assert (decision.draft, decision.gamma, decision.stop) == (0, 4, 1)
    assert decision.wait and decision.prefetch is None
    decision = falling_back.decide(seen)
    assert (decision.draft, decision.prefetch, decision.wait) == (1, 0, False)


def test_without_memory_management_a_check_comes_every_few_rounds_and_with_each_request() -> None:
    controller = MemSpecNoMemoryController(N, 2, interval=3)
    first, then = (see(drafts={"predicted": column}) for column in ((0.9, 0.1, 0.1), (0.1, 0.9, 0.1)))
    chosen = []
    for seen in (first, then, then, then, first, first, first):
        chosen.append(controller.decide(seen).draft)
        controller.learn(outcome(2, 1))
    assert chosen == [0, 0, 0, 1, 1, 1, 0]
    assert controller.decide(see(Phase.ADMIT)).draft is None
    assert controller.decide(then).draft == 1


def test_without_memory_management_a_draft_that_cannot_be_loaded_is_given_up() -> None:
    controller = MemSpecNoMemoryController(N, 2)
    seen = see(drafts={"resident": AWAY, "predicted": (0.9, 0.5, 0.1)})
    assert controller.decide(seen).wait
    controller.learn(outcome(0, 0, draft=None))
    assert [controller.decide(seen).draft for _ in range(6)] == [1] * 6
    controller.begin_stream()
    assert controller.decide(seen).draft == 0


def test_without_memory_management_it_stalls_and_misses_nothing() -> None:
    world = make_world()
    stream = world.streams(0, 1)[0]
    result, _ = serve(MemSpecNoMemoryController(N, 2), stream, world.session(), "x")
    assert result.stall_s > 0.0 and result.loads > 0 and result.illegal == 0
    result, _ = serve(MemSpecController(N, 2), stream, world.session(), "x")
    assert result.stall_s == 0.0 and result.loads > 0


def test_without_prediction_fresh_evidence_decides() -> None:
    controller = MemSpecNoPredictionController((0.5, 0.5, 0.1), 2)
    fresh = {"acceptance": (0.2, 0.7, 0.1), "staleness": (0.0, 0.0, 0.0), "predicted": (1.0, 0.0, 0.0)}
    assert controller.decide(see(drafts=fresh)).draft == 1
    stale = {**fresh, "acceptance": (0.45, 0.0, 0.1), "staleness": (0.0, 1024.0, 0.0)}
    assert controller.decide(see(drafts=stale)).draft == 1  # what it did long ago says nothing


def test_without_prediction_a_draft_is_fetched_that_might_do_better() -> None:
    controller = MemSpecNoPredictionController((0.5, 0.5, 0.1), 2, bonus=0.05)
    for now, wanted in ((0.1, 0), (0.51, 0), (0.6, None)):
        columns = {"resident": AWAY, "acceptance": (0.0, now, 0.1), "staleness": (1024.0, 0.0, 0.0)}
        decision = controller.decide(see(drafts=columns))
        assert (decision.draft, decision.prefetch, decision.wait) == (1, wanted, False)


def test_without_prediction_every_draft_is_tried() -> None:
    """Each draft is right in its own domain only, and the stream visits both."""
    world = make_world(requests=8)
    expected = tuple(spec.expected for spec in make_specs())
    controller = MemSpecNoPredictionController(expected, 2)
    session, used = world.session(), set()
    session.start(item.request for item in world.streams(3, 1)[0])
    finished = False
    while not finished:
        done = session.advance(controller.decide(session.observe()))
        used.add(done.decision.draft)
        finished = done.stream_finished
    assert {0, 1} <= used
