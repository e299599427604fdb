"""What requests have freed goes back to the system: now and then while something is computed, and once afterwards."""

from __future__ import annotations

import sys

import pytest

from benchmarks.watching import watch
from runtime.server.freeing import PAUSE_S, Freeing
from tests.memory.heap import make_holes
from tests.server.serving import ask, running, slow, until
from tests.tiny_zoo import TinyZoo

MIB = 1 << 20


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_memory_is_given_back_after_work_and_not_too_often() -> None:
    clock, released = Clock(), list[float]()
    one = Freeing(lambda: released.append(clock.now_s), clock)
    for _ in range(10):  # a server that nobody asks
        clock.now_s += PAUSE_S
        one.check()
    assert released == []
    one.note_work()
    one.check()
    assert released == [100.0 + 10 * PAUSE_S]
    for _ in range(4):
        clock.now_s += PAUSE_S / 4
        one.note_work()
        one.check()
    assert released == [100.0 + 10 * PAUSE_S, 100.0 + 11 * PAUSE_S]
    one.note_work()
    one.check()  # too soon
    clock.now_s += PAUSE_S
    one.check()  # nothing was computed since, but that was not given back
    one.check()
    assert len(released) == 3


def test_a_server_gives_back_during_a_request_and_once_behind_it(
    tiny_zoo: TinyZoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, released = Clock(), list[float]()
    monkeypatch.setattr("runtime.server.driver.Freeing", lambda: Freeing(lambda: released.append(clock.now_s), clock))
    monkeypatch.setattr("runtime.server.driver.LOOK_S", 0.0)
    with running(tiny_zoo.bundle, "plain", slow(0.001)) as server:
        ask(server, 4)
        assert released == []  # too soon
        clock.now_s += PAUSE_S
        until(lambda: len(released) == 1)  # nobody asks any more
        clock.now_s += PAUSE_S
        ask(server, 8)
        assert len(released) == 2  # in between
        looked_s = server.metric("process_cpu_seconds_total")
        until(lambda: server.metric("process_cpu_seconds_total") > looked_s + 0.05)
        assert len(released) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads RssAnon from /proc, which is Linux's")
def test_holes_keep_their_pages_until_they_are_given_back() -> None:
    full, holes, idle, back = (reading.now for reading in watch(make_holes))
    assert full - holes < 2 * MIB and holes - idle < 2 * MIB
    assert 17 * MIB < holes - back < 23 * MIB
