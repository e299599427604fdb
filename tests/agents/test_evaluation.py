from __future__ import annotations

import pytest

from agents.evaluation import Factory, evaluate, serve, traced_texts
from agents.tuning import tune
from runtime.control.base import Controller
from runtime.control.static import StaticController, plain_controller
from tests.factories import make_world

FACTORIES: dict[str, Factory] = {
    "plain": lambda: plain_controller(3),
    "static:code:4": lambda: StaticController(3, 0, 4, name="static:code:4"),
}


def test_every_controller_serves_every_stream_afresh() -> None:
    world = make_world()
    streams = world.streams(0, 3)
    results = evaluate(FACTORIES, streams, world.session, seed=7)
    assert [(r.controller, r.stream, r.seed) for r in results] == [
        (name, index, 7) for name in FACTORIES for index in range(3)
    ]
    for result in results:
        stream = streams[result.stream]
        assert result.requests == len(stream) == len(result.ttft_s)
        assert result.tokens == sum(len(text) for text in traced_texts(stream))
        assert result.identical
        assert result.seconds > 0.0
        assert result.drafted >= result.accepted
    plain, static = results[:3], results[3:]
    assert all(r.loads == r.speculative_rounds == 0 for r in plain)
    assert all(r.loads == 1 and r.speculative_rounds > 0 for r in static)


def test_a_repetition_gives_the_same_virtual_results() -> None:
    world = make_world()
    streams = world.streams(0, 2)
    first, second = (evaluate(FACTORIES, streams, world.session) for _ in range(2))
    assert [(r.tokens, r.seconds, r.loads) for r in first] == [(r.tokens, r.seconds, r.loads) for r in second]


def test_seconds_are_the_session_clock() -> None:
    world = make_world()
    session = world.session()
    result, _ = serve(plain_controller(3), world.streams(0, 1)[0], session, "plain")
    assert result.seconds == pytest.approx(session.clock.now_s())
    assert result.seconds == pytest.approx(session.counters.seconds)


def test_every_decision_is_timed() -> None:
    world = make_world()
    result, _ = serve(plain_controller(3), world.streams(0, 1)[0], world.session(), "plain")
    assert len(result.decide_us) == result.tokens + result.requests  # a round a token, less the first, and two more
    assert min(result.decide_us) > 0.0


def test_a_differing_text_is_seen() -> None:
    world = make_world()
    stream = world.streams(0, 1)[0]
    texts = traced_texts(stream)
    wrong = ((*texts[0][:-1], texts[0][-1] + 1), *texts[1:])
    assert serve(plain_controller(3), stream, world.session(), "plain", expected=texts)[0].identical
    assert not serve(plain_controller(3), stream, world.session(), "plain", expected=wrong)[0].identical


def test_texts_can_be_compared_with_a_controllers() -> None:
    world = make_world()
    streams = world.streams(0, 1)
    backwards = dict(reversed(FACTORIES.items()))
    results = evaluate(backwards, streams, world.session, reference="plain")
    assert [r.controller for r in results] == list(backwards)
    assert all(r.identical for r in results)
    with pytest.raises(ValueError, match="reference 'nobody': expected one of plain"):
        evaluate(FACTORIES, streams, world.session, reference="nobody")


def test_tuning_takes_the_fastest_setting() -> None:
    world = make_world()
    streams = world.streams(0, 2)

    def make(gamma: int, stop: int) -> Controller:
        return StaticController(3, 0, gamma, stop)

    best, trials = tune(make, streams, world.session, gammas=(1, 8), stops=(0, 2))
    assert [(trial.gamma, trial.stop) for trial in trials] == [(1, 0), (1, 2), (8, 0), (8, 2)]
    assert best.tokens_per_s == max(trial.tokens_per_s for trial in trials)
    alone = [serve(make(best.gamma, best.stop), s, world.session(), "static")[0] for s in streams]
    assert best.tokens_per_s == pytest.approx(sum(r.tokens for r in alone) / sum(r.seconds for r in alone))
    with pytest.raises(ValueError, match="expected streams and settings, got 0 streams"):
        tune(make, (), world.session)
