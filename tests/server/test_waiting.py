from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from runtime.server.waiting import Full, WaitingRoom


@dataclass(frozen=True)
class Guest:
    client: str
    name: str


def room(places: int, *names: str) -> WaitingRoom[Guest]:
    """A room in which guests wait; the first letter of a name is the client."""
    one: WaitingRoom[Guest] = WaitingRoom(places)
    for name in names:
        assert one.add(Guest(name[0], name)) is None
    return one


def order(one: WaitingRoom[Guest]) -> str:
    taken = []
    while (guest := one.take(0)) is not None:
        taken.append(guest.name)
    return " ".join(taken)


def test_clients_take_turns() -> None:
    assert order(room(9, "a1", "a2", "a3", "b1", "b2", "c1")) == "a1 b1 c1 a2 b2 a3"


def test_who_was_just_served_comes_last() -> None:
    one = room(9, "a1", "a2", "b1")
    first, upcoming = one.take(0), one.next()
    assert first is not None and first.name == "a1" and upcoming is not None and upcoming.name == "b1"
    one.add(Guest("a", "a3"))
    assert order(one) == "b1 a2 a3"


def test_a_full_room_refuses() -> None:
    one = room(2, "a1", "b1")
    with pytest.raises(Full, match=r"^$"):
        one.add(Guest("c", "c1"))
    with pytest.raises(Full, match=r"^$"):
        room(1, "a1").add(Guest("a", "a2"))


def test_one_client_cannot_keep_all_places() -> None:
    one = room(3, "a1", "a2", "a3")
    pushed_out = one.add(Guest("b", "b1"))
    assert pushed_out is not None and pushed_out.name == "a3"
    with pytest.raises(Full, match=r"^$"):  # two against one is as fair as it gets
        one.add(Guest("b", "b2"))
    assert order(one) == "a1 b1 a2"


def test_who_leaves_is_not_served() -> None:
    one = room(9, "a1", "a2", "b1")
    assert one.remove(Guest("a", "a1")) and one.remove(Guest("b", "b1"))
    assert not one.remove(Guest("b", "b1")) and len(one) == 1
    assert order(one) == "a2"


def test_a_closed_room_gives_all_back_and_lets_nobody_in() -> None:
    one, left = room(9, "a1", "b1"), list[str]()
    one.close(lambda guest: left.append(guest.name))
    assert left == ["a1", "b1"] and one.take(10) is None
    with pytest.raises(Full, match=r"^$"):
        one.add(Guest("a", "a2"))


def test_take_waits_for_a_guest() -> None:
    one: WaitingRoom[Guest] = WaitingRoom(1)
    threading.Timer(0.05, one.add, [Guest("a", "a1")]).start()
    guest = one.take(30)
    assert guest is not None and guest.name == "a1"
