"""Whom the comparison with llama.cpp compares."""

from __future__ import annotations

import pytest

from benchmarks.llamacpp import PLAIN_OURS, PLAIN_THEIRS, chosen
from runtime.errors import UserError


class Named:
    """A contender that has a name only."""

    family = "plain"

    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        raise NotImplementedError

    def settle(self) -> None: ...


EVERYBODY = [Named(name) for name in (PLAIN_THEIRS, "specpilot: stacked", PLAIN_OURS, "specpilot: policy")]


@pytest.mark.parametrize(
    ("only", "expected"),
    [("", [0, 1, 2, 3]), ("policy", [0, 2, 3]), ("stacked, policy", [0, 1, 2, 3]), ("plain", [0, 2])],
)
def test_those_who_are_asked_for_and_the_plain_ones(only: str, expected: list[int]) -> None:
    assert chosen(EVERYBODY, only) == [EVERYBODY[i] for i in expected]


def test_a_word_that_nobody_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"nobody's name has 'polcy'.*specpilot: policy"):
        chosen(EVERYBODY, "stacked,polcy")
