"""Loads on the virtual clock: nothing is lost, nothing is free, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.replay.clock import VirtualClock
from envs.replay.loader import VirtualLoader
from runtime.memory.base import Job
from runtime.profile import CostModel
from tests.factories import NAMES, make_profile

LOAD_S = 0.25


def make_loader(decode_slowdown: float = 1.5, load_slowdown: float = 2.0) -> tuple[VirtualLoader, VirtualClock]:
    profile = replace(make_profile(), decode_slowdown=decode_slowdown, load_slowdown=load_slowdown)
    clock = VirtualClock()
    return VirtualLoader(CostModel(profile, NAMES), clock), clock


def test_a_stall_loads_at_full_speed() -> None:
    loader, clock = make_loader()
    loader.start(0)
    loader.wait(0)
    assert clock.now_s() == pytest.approx(LOAD_S)
    assert [(done.job, done.error) for done in loader.poll()] == [(0, None)]
    assert loader.poll() == []


def test_work_and_a_load_slow_each_other_down() -> None:
    loader, clock = make_loader()
    loader.start(0)
    loader.work(0.1)  # takes 0.15 s, in which the load gets on by 0.075 s
    assert clock.now_s() == pytest.approx(0.15)
    assert loader.fraction(0) == pytest.approx(0.3)
    loader.work(1.0)  # 0.35 s until the load is there, in which 0.35 / 1.5 of the work is done
    assert clock.now_s() == pytest.approx(0.5 + 1.0 - 0.35 / 1.5)
    (done,) = loader.poll()
    assert done.seconds == pytest.approx(0.5)
    assert not loader.busy


def test_loads_come_in_the_order_of_asking() -> None:
    loader, clock = make_loader()
    loader.start(1)
    loader.start(0)
    assert loader.fraction(0) == 0.0
    clock.advance(0.3)
    assert loader.fraction(0) == pytest.approx(0.2)
    loader.wait(0)
    assert [(done.job, round(done.seconds, 9)) for done in loader.poll()] == [(1, LOAD_S), (0, LOAD_S)]
    assert clock.now_s() == pytest.approx(2 * LOAD_S)


def test_a_load_that_has_finished_is_whole_until_it_is_polled() -> None:
    loader, clock = make_loader()
    loader.start(0)
    clock.advance(1.0)
    assert loader.fraction(0) == 1.0
    loader.wait(0)
    assert clock.now_s() == 1.0


EVENT = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.integers(0, 1)),
    st.tuples(st.just("work"), st.floats(0.0, 0.6)),
    st.tuples(st.just("idle"), st.floats(0.0, 0.6)),
)


@given(st.lists(EVENT, max_size=30), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_time_is_conserved(events: list[tuple[str, float]], decode_slowdown: float, load_slowdown: float) -> None:
    """Every load is delivered once; the time that passed pays for the work, for idling, and for the stalls."""
    loader, clock = make_loader(decode_slowdown, load_slowdown)
    started: list[int] = []
    delivered: list[Job] = []
    work_s = idle_s = stall_s = 0.0
    for kind, value in events:
        before = clock.now_s()
        if kind == "start":
            if int(value) not in started[len(delivered) :]:  # else it is on its way: asking again changes nothing
                started.append(int(value))
            loader.start(int(value))
        elif kind == "work":
            loader.work(value)
            work_s += value
        elif kind == "idle":
            clock.advance(value)
            idle_s += value
        else:
            loader.wait(int(value))
            stall_s += clock.now_s() - before
        assert clock.now_s() >= before
        delivered += [done.job for done in loader.poll()]
        assert all(0.0 <= loader.fraction(draft) <= 1.0 for draft in (0, 1))
    assert delivered == started[: len(delivered)]
    slack = 1e-9 * (1 + len(events))
    passed_s = clock.now_s() - idle_s - stall_s
    assert work_s - slack <= passed_s <= decode_slowdown * work_s + slack
    assert LOAD_S * len(delivered) <= clock.now_s() + slack
    for draft in (0, 1):
        loader.wait(draft)
    assert [*delivered, *(done.job for done in loader.poll())] == started
