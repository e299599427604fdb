"""Memory pressure from outside: the budget gives way, the text stays, and it comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from runtime.core import Decision, Victim
from runtime.server import pressure
from runtime.server.pressure import Pressure
from runtime.session import DecodeSession
from tests.server.machine import ENOUGH, Machine
from tests.server.serving import Running, ask, running, slow, until
from tests.session.tiny_session import DRAFT, open_tiny
from tests.tiny import request
from tests.tiny_zoo import TinyZoo

CPU = torch.device("cpu")
FLOOR = 1000
WHOLE = 1 << 40
"""Keeping so much free takes all of any budget, once nothing is available."""


def opened() -> DecodeSession:
    """A session with two drafts in memory, and room for a third."""
    session, _ = open_tiny(0, 3)
    for draft in (0, 1):
        assert session.memory.load_now(draft, Victim.DRAFTS, 0.0)
    return session


class Watch:
    """A watcher whose clock and machine a test moves."""

    def __init__(self, session: DecodeSession, floor: int = FLOOR) -> None:
        self.available: int | None = ENOUGH
        self.now_s, self.asked = 0.0, 0
        self.watch = Pressure(session, floor, CPU, self._asked, lambda: self.now_s)

    def _asked(self) -> int | None:
        self.asked += 1
        return self.available

    def see(self, available: int | None) -> None:
        self.available, self.now_s = available, self.now_s + pressure.CHECK_S
        self.watch.check()


def test_what_is_missing_is_given_up_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    session = opened()
    memory, watch = session.memory, Watch(session)
    budget, used = memory.config.budget_bytes, memory.used_bytes
    watch.see(ENOUGH)
    assert memory.aside_bytes == 0 and not caplog.records
    watch.see(FLOOR + budget - used)  # just enough for all of the budget
    assert memory.aside_bytes == 0
    watch.see(FLOOR + 10)
    assert memory.aside_bytes == budget - used - 10 and memory.used_bytes == used  # nothing to give up yet
    watch.see(FLOOR - 1)
    assert memory.used_bytes == used - DRAFT
    assert memory.budget_bytes == used - 1
    watch.see(0)
    watch.see(0)
    assert [memory.resident(draft) for draft in (0, 1)] == [False, False]
    assert [record.getMessage()[:11] for record in caplog.records] == ["the machine"]
    watch.see(FLOOR + budget - memory.used_bytes)  # enough, but only just
    assert memory.aside_bytes == 0 and len(caplog.records) == 1
    watch.see(ENOUGH)
    watch.see(ENOUGH)
    assert "has memory again" in caplog.records[1].getMessage() and len(caplog.records) == 2


def test_the_memory_of_what_was_dropped_goes_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    session = opened()
    memory, watch = session.memory, Watch(session)
    monkeypatch.setattr(pressure, "release_free_memory", lambda: held.append(memory.used_bytes))
    used, budget = memory.used_bytes, memory.config.budget_bytes
    watch.see(ENOUGH)
    watch.see(FLOOR + 10)
    assert memory.used_bytes == used and held == []  # set aside, but nothing was dropped
    watch.see(0)
    assert memory.used_bytes < used and held == [memory.used_bytes]
    watch.see(FLOOR + budget)
    assert memory.aside_bytes == 0 and len(held) == 1


def test_looks_seldom() -> None:
    watch = Watch(opened())
    for _ in range(100):
        watch.watch.check()
    assert watch.asked == 1


@pytest.mark.parametrize(("floor", "available", "asked"), [(0, 0, 0), (FLOOR, None, 1)])
def test_does_nothing_where_nothing_is_asked_or_told(floor: int, available: int | None, asked: int) -> None:
    session = opened()
    watch = Watch(session, floor)
    for _ in range(3):
        watch.see(available)
    assert watch.asked == asked and session.memory.aside_bytes == 0 and session.memory.resident(0)


def test_the_draft_in_use_stays_until_its_request_ends() -> None:
    session = opened()
    session.start([request(12)])
    session.advance(Decision())
    session.advance(Decision(draft=1, gamma=2))
    watch = Watch(session)
    watch.see(0)
    assert [session.memory.resident(draft) for draft in (0, 1)] == [False, True]
    while not session.advance(Decision(draft=1, gamma=2)).stream_finished:
        assert session.memory.resident(1)
    watch.see(0)
    assert not session.memory.resident(1)


# -- the real server -------------------------------------------------------------------------------------------------


def test_the_server_gives_way_and_takes_back(
    tiny_zoo: TinyZoo, steady: Running, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tiny_zoo.bundle, "static:one:4", keep_free_bytes=WHOLE) as server:
        assert ask(server) == ask(steady)
        until(lambda: server.draft_state("one") == "resident")
        machine.available = 0
        until(lambda: server.draft_state("one") == "stored")
        budget = server.metric("specpilot_budget_bytes")
        assert server.metric("specpilot_set_aside_bytes") == server.state()["memory"]["aside_bytes"] == budget
        assert ask(server) == ask(steady)
        assert server.draft_state("one") == "stored"
        machine.available = ENOUGH
        until(lambda: server.metric("specpilot_set_aside_bytes") == 0)
        assert ask(server) == ask(steady)
        until(lambda: server.draft_state("one") == "resident")
    told = [record.getMessage() for record in caplog.records if record.name == pressure.LOGGER.name]
    assert len(told) == 2 and "0 MB of memory left" in told[0] and "memory again" in told[1]


def test_pressure_in_the_middle_of_a_request_changes_no_text_and_stalls_nothing(
    tiny_zoo: TinyZoo, steady: Running, machine: Machine
) -> None:
    with running(tiny_zoo.bundle, "static:one:4", slow(0.02), keep_free_bytes=WHOLE) as server:
        ask(server)
        until(lambda: server.draft_state("one") == "resident")
        before = server.metric("specpilot_stall_seconds_total")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, server, 120)
            until(lambda: not server.state()["idle"])
            machine.available = 0
            until(lambda: server.metric("specpilot_set_aside_bytes") > 0)
            assert asked.result() == ask(steady, 120)
        assert server.metric("specpilot_stall_seconds_total") == before
        until(lambda: server.draft_state("one") == "stored")


def test_without_the_option_nothing_is_watched(tiny_zoo: TinyZoo, machine: Machine) -> None:
    machine.available = 0
    with running(tiny_zoo.bundle, "static:one:4", keep_free_bytes=0) as server:
        ask(server)
        until(lambda: server.draft_state("one") == "resident")
        assert server.metric("specpilot_set_aside_bytes") == 0
