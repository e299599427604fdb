from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

from agents.bandits import DraftBandit, EpsilonGreedyController, Exp3Controller, ThompsonController, UcbController
from tests.agents.made_up import four_world, play, seconds

KINDS: list[Callable[..., DraftBandit]] = [
    EpsilonGreedyController,
    UcbController,
    Exp3Controller,
    ThompsonController,
]
DRAWING = [EpsilonGreedyController, Exp3Controller, ThompsonController]
BOTH = pytest.mark.parametrize("resident_only", [False, True], ids=["loading", "resident"])
EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@EVERY
@BOTH
def test_finds_the_arm_that_pays_best(kind: Callable[..., DraftBandit], resident_only: bool) -> None:
    bandit = kind(3, 1, interval=1, resident_only=resident_only)
    chosen = play(bandit, lambda index: (0.5, 1.0, 0.6), 300)
    assert Counter(chosen[-100:])[1] > 70


@EVERY
@BOTH
def test_follows_a_shift(kind: Callable[..., DraftBandit], resident_only: bool) -> None:
    bandit = kind(3, 1, interval=1, resident_only=resident_only)
    chosen = play(bandit, lambda index: (0.5, 1.0, 0.6) if index < 200 else (1.0, 0.3, 0.3), 500)
    assert Counter(chosen[100:200])[1] > 70
    assert Counter(chosen[-100:])[0] > 70


@EVERY
def test_begins_every_stream_anew(kind: Callable[..., DraftBandit]) -> None:
    bandit = kind(3, 1, interval=1)
    assert play(bandit, lambda index: (0.1, 0.2, 1.0), 100)[:3] == [0, 1, 2]
    assert play(bandit, lambda index: (0.1, 0.2, 1.0), 3) != [0, 1, 2]
    bandit.begin_stream()
    assert play(bandit, lambda index: (0.1, 0.2, 1.0), 3) == [0, 1, 2]


@pytest.mark.parametrize("kind", DRAWING, ids=lambda kind: kind.__name__)
def test_draws_by_seed(kind: Callable[..., DraftBandit]) -> None:
    def chosen(seed: int) -> list[int]:
        return play(kind(3, 1, interval=1, seed=seed), lambda index: (0.9, 1.0, 0.95), 200)

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


@pytest.mark.parametrize("kind", DRAWING, ids=lambda kind: kind.__name__)
def test_draws_differently_in_every_stream(kind: Callable[..., DraftBandit]) -> None:
    bandit = kind(3, 4, seed=0)
    first = [bandit._rng.random() for _ in range(3)]
    bandit.begin_stream()
    assert [bandit._rng.random() for _ in range(3)] != first


@EVERY
@BOTH
def test_serves_a_stream_alike_twice(kind: Callable[..., DraftBandit], resident_only: bool) -> None:
    world = four_world()
    assert seconds(kind(4, 4, resident_only=resident_only), world) == seconds(
        kind(4, 4, resident_only=resident_only), world
    )


def test_exp3_follows_its_formula() -> None:
    bandit = Exp3Controller(2, 1, rate=0.5, explore=0.2, share=0.01, memory=1.0)
    bandit._weights = [0.75, 0.25]
    assert bandit._chances([0, 1]) == pytest.approx([0.8 * 0.75 + 0.1, 0.8 * 0.25 + 0.1])
    assert bandit._chances([1]) == pytest.approx([1.0])
    bandit._paid, bandit._pulls, bandit._best_pay, bandit._chance = [3.0, 1.0], [2.0, 2.0], 2.0, 0.3
    bandit._note(1, 2.0)
    grown = 0.25 * math.exp(0.5 * (2.0 - 1.0) / 2.0 / 0.3)
    total, spread = 0.75 + grown, math.e * 0.01 / 2
    assert bandit._weights == pytest.approx([0.75 / total + spread, grown / total + spread])


def test_exp3_forgets_its_weights_between_streams() -> None:
    bandit = Exp3Controller(3, 1, interval=1)
    play(bandit, lambda index: (0.1, 0.2, 1.0), 50)
    assert max(bandit._weights) > 0.5
    bandit.begin_stream()
    assert bandit._weights == pytest.approx([1 / 3] * 3)


def test_exp3_makes_up_for_the_chance_of_an_arm_and_takes_weight_for_poor_pay() -> None:
    def weight_after(chance: float, pay: float) -> float:
        bandit = Exp3Controller(2, 1)
        bandit._paid, bandit._pulls, bandit._best_pay, bandit._chance = [1.0, 1.0], [1.0, 1.0], 2.0, chance
        bandit._note(1, pay)
        return bandit._weights[1]

    assert weight_after(0.1, 2.0) > weight_after(0.9, 2.0) > 0.5 > weight_after(0.9, 0.5) > weight_after(0.1, 0.5)


def test_exp3_takes_the_first_pull_of_an_arm_as_certain() -> None:
    bandit = Exp3Controller(3, 1, interval=1)
    bandit._chance = 0.01
    play(bandit, lambda index: (1.0, 1.0, 1.0), 1)
    assert bandit._chance == 1.0


def test_thompson_tries_what_it_knows_little_of() -> None:
    def poorer(pulls: float, spread: float) -> int:
        bandit = ThompsonController(2, 1, spread=spread)
        bandit._paid, bandit._pulls, bandit._best_pay = [50.0, 0.4 * pulls], [100.0, pulls], 1.0
        return Counter(bandit._choose([0, 1]) for _ in range(400))[1]

    assert poorer(pulls=100.0, spread=0.2) < 10
    assert 60 < poorer(pulls=1.0, spread=0.2) < 180
    assert poorer(pulls=1.0, spread=0.0) == 0


def test_refuse_bad_settings() -> None:
    with pytest.raises(ValueError, match="rate: expected above 0, got 0"):
        Exp3Controller(2, 1, rate=0.0)
    with pytest.raises(ValueError, match="explore: expected a probability above 0, got 2"):
        Exp3Controller(2, 1, explore=2.0)
    with pytest.raises(ValueError, match="share: expected above 0, got 0"):
        Exp3Controller(2, 1, share=0.0)
    with pytest.raises(ValueError, match="spread: expected at least 0, got -1"):
        ThompsonController(2, 1, spread=-1.0)
