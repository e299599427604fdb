"""Draft lengths between those of a policy: what baselines may name, and what becomes of it."""

from __future__ import annotations

import pytest

from runtime.control.rules import longest_gamma, speculate
from runtime.core import GAMMAS, PLAIN, Decision
from runtime.session import DecodeSession
from tests.control.observing import see
from tests.factories import make_world


@pytest.mark.parametrize(
    ("gamma", "room", "longest"), [(8, 100, 8), (8, 8, 4), (4, 2, 1), (5, 100, 8), (5, 6, 5), (7, 7, 6), (3, 2, 1)]
)
def test_the_longest_length_is_of_the_same_kind(gamma: int, room: int, longest: int) -> None:
    assert longest_gamma(gamma, room) == longest
    decision = speculate(see(room_tokens=room), 0, gamma, 1, PLAIN)
    assert decision == Decision(draft=0, gamma=min(gamma, longest), stop=1)


def at_room(room: int) -> DecodeSession:
    """A session with draft 0 resident and so much room left."""
    session = make_world().session()
    session.start(item.request for item in make_world().streams(0, 1)[0])
    session.advance(PLAIN)
    session.advance(Decision(draft=0, gamma=1, stop=0, wait=True))
    while session._state.room > room:
        session.advance(PLAIN)
    return session


@pytest.mark.parametrize(
    ("gamma", "done", "illegal"),
    [(1, 1, 0), (3, 3, 0), (5, 5, 0), (6, 6, 0), (4, 4, 0), (7, 6, 1), (8, 4, 1), (12, 6, 1)],
)
@pytest.mark.parametrize("wait", [False, True])
def test_a_length_is_cut_to_the_room_and_counted_only_then(gamma: int, done: int, illegal: int, wait: bool) -> None:
    session = at_room(7)
    assert session._state.room == 7
    outcome = session.advance(Decision(draft=0, gamma=gamma, wait=wait))
    assert (outcome.decision.gamma, outcome.illegal) == (done, illegal)
    assert outcome.round is not None and outcome.round.drafted == done


def test_a_length_that_waits_for_its_draft_is_cut_without_being_counted() -> None:
    session = at_room(7)
    assert not session.memory.resident(1)
    outcome = session.advance(Decision(draft=1, gamma=7, wait=True))
    assert (outcome.decision.draft, outcome.decision.gamma, outcome.illegal) == (1, 6, 0)
    assert max(GAMMAS) == 8
