from __future__ import annotations

from dataclasses import replace

import pytest

from agents.baselines import Baseline, Option
from agents.evaluation import Factory, evaluate, traced_texts
from agents.serving import serve
from agents.tuning import rate, tune
from agents.workers import over_all_cores
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

    def setting(gamma: int, stop: int) -> Option:
        return Option(gamma, stop, lambda costs: StaticController(3, 0, gamma, stop))

    options = tuple(setting(gamma, stop) for gamma in (1, 8) for stop in (0, 2))
    alone = Baseline("alone", options[:1])
    best, untuned = tune([Baseline("static", options), alone], world, streams, progress=False)
    rates = [rate(option.make(world.costs), streams, world) for option in options]
    assert best.tokens_per_s == max(rates) > min(rates)
    assert (best.gamma, best.stop) == options[rates.index(max(rates))][:2]
    assert (untuned.name, untuned.gamma, untuned.tokens_per_s) == ("alone", 1, 0.0)
    with pytest.raises(ValueError, match="expected training streams to tune on, got none"):
        tune([alone], world, (), progress=False)


def test_workers_give_what_one_process_gives() -> None:
    world = make_world()
    streams = world.streams(0, 2)
    alone, spread = (evaluate(FACTORIES, streams, world.session, workers=workers) for workers in (1, 2))
    assert [replace(result, decide_us=()) for result in alone] == [replace(result, decide_us=()) for result in spread]


def test_a_failure_in_a_worker_is_raised_here() -> None:
    def fail(item: int) -> int:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match=r"item [01]"):
        list(over_all_cores(fail, [0, 1], workers=2))
