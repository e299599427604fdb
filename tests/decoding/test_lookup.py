"""The look-up drafter: most recent, longest, never over a boundary."""

from __future__ import annotations

from runtime.decoding.drafters.base import calibrated
from runtime.decoding.drafters.lookup import CONFIDENCE, LookupDrafter

NO_EOS: frozenset[int] = frozenset()


def guesses(drafter: LookupDrafter, tokens: list[int], gamma: int = 4, threshold: float = 0.0) -> tuple[int, ...]:
    return drafter.propose(tokens, 0, gamma, threshold, NO_EOS).tokens


def fresh(memory_tokens: int = 1000) -> LookupDrafter:
    drafter = LookupDrafter(memory_tokens=memory_tokens)
    drafter.begin()
    return drafter


def test_repeats_what_followed() -> None:
    assert guesses(fresh(), [1, 2, 3, 4, 5, 9, 1, 2]) == (3, 4, 5, 9)


def test_takes_the_most_recent_match() -> None:
    assert guesses(fresh(), [1, 2, 3, 1, 2, 4, 1, 2], 1) == (4,)


def test_takes_the_longest_match() -> None:
    assert guesses(fresh(), [7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1) == (3,)


def test_a_single_common_token_is_no_match() -> None:
    assert guesses(fresh(), [1, 2, 3, 1]) == ()
    assert fresh().confidence([1, 2, 3, 1]) == 0.0


def test_a_repeated_pattern_goes_on() -> None:
    assert guesses(fresh(), [1, 2, 1, 2, 1, 2], 5) == (1, 2, 1, 2, 1)


def test_remembers_earlier_requests_but_never_joins_them() -> None:
    drafter = fresh()
    drafter.sync([1, 2, 3])
    drafter.begin()
    assert guesses(drafter, [4, 1, 2]) == (3,)  # the earlier request ends there
    drafter.begin()
    drafter.sync([3, 4])  # 3 ended one request, 4 begins another: together they are no match
    drafter.begin()
    assert guesses(drafter, [8, 2, 3]) == ()


def test_memory_is_bounded() -> None:
    drafter = fresh(memory_tokens=20)
    drafter.sync([1, 2, 3])
    for start in range(100, 400, 10):
        drafter.begin()
        drafter.sync(list(range(start, start + 10)))
    assert len(drafter._young.tokens) + len(drafter._old.tokens) < 50
    drafter.begin()
    assert guesses(drafter, [1, 2]) == ()
    assert guesses(fresh(20), [1, 2, 3, 1, 2], 1) == (3,)


def test_older_generation_is_searched() -> None:
    drafter = fresh(memory_tokens=8)
    drafter.sync([1, 2, 3, 4, 5, 6])
    drafter.begin()
    assert guesses(drafter, [2, 3]) == (4, 5, 6)


def test_confidence_grows_with_the_match_and_stops() -> None:
    text = [9, 1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22, 9, 1, 2]
    assert fresh().confidence(text) == calibrated(CONFIDENCE[3], (1.0, 0.0))
    assert fresh().confidence([*text, 3, 4, 5, 6, 7, 8, 20]) == calibrated(CONFIDENCE[8], (1.0, 0.0))
    product = calibrated(CONFIDENCE[3], (1.0, 0.0)) * calibrated(CONFIDENCE[4], (1.0, 0.0))
    assert len(guesses(fresh(), text, 8, product * 1.001)) == 2  # the one that fails is the last
    assert len(guesses(fresh(), text, 8, product * 0.999)) == 3
    assert len(guesses(fresh(), text, 8, 0.99)) == 1


def test_ends_with_an_ending_token() -> None:
    drafter = fresh()
    assert drafter.propose([1, 2, 3, 4, 5, 1, 2], 0, 8, 0.0, frozenset({4})).tokens == (3, 4)


def test_no_forwards_are_counted() -> None:
    proposal = fresh().propose([1, 2, 3, 1, 2], 0, 2, 0.0, NO_EOS)
    assert (proposal.steps, proposal.catch_up_tokens, proposal.scored) == (0, 0, (0, 0))
