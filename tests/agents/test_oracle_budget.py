from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from agents import oracle_budget
from agents.evaluation import evaluate
from agents.foresight import LONGEST, Foresight, Reach
from agents.oracle import clairvoyant_s, oracle_results
from agents.oracle_budget import WorkingSets, budget_s, load_loss_s
from runtime.core import STOP_LEVELS, DraftSpec, MemoryConfig
from runtime.errors import UserError
from runtime.profile import CostModel
from tests.agents.players import NAMES, costly_world, players
from tests.factories import make_profile, make_specs

DRAFTS = ("code", "math", "prose", "lookup")


def slowed(load_s: float = 0.5, decode_slowdown: float = 1.0, load_slowdown: float = 1.0) -> CostModel:
    profile = make_profile(DRAFTS, load_s)
    return CostModel(replace(profile, decode_slowdown=decode_slowdown, load_slowdown=load_slowdown), DRAFTS)


def test_nobody_beats_the_oracles_and_the_budget_costs_time() -> None:
    world = costly_world(disk_bytes=2000)
    streams = world.streams(0, 3)
    bounds = {(r.controller, r.stream): r.seconds for r in oracle_results(streams, world)}
    for index in range(3):
        assert bounds["oracle_clairvoyant", index] < bounds["oracle_budget", index]
    for result in evaluate(players(), streams, world.session):
        assert bounds["oracle_budget", result.stream] <= result.seconds + 1e-9, result.controller


@pytest.mark.parametrize("budget_bytes", [50, 100, 1099])
def test_without_room_for_a_draft_only_weightless_ones_guess(budget_bytes: int) -> None:
    world = costly_world(budget_bytes)
    sets = WorkingSets.of(world.drafts, world.costs, world.config.memory)
    assert sets.sets == (frozenset(),)
    assert sets.loads == ()
    assert sets.weightless == (NAMES.index("lookup"),)


@pytest.mark.parametrize("budget_bytes", [1100, 2100, 3100, 10_000])
def test_more_memory_is_never_slower(budget_bytes: int) -> None:
    world, less = costly_world(budget_bytes), costly_world(budget_bytes - 1000)
    streams = world.streams(1, 2)
    seconds = {
        name: [r.seconds for r in oracle_results(streams, each) if r.controller == "oracle_budget"]
        for name, each in (("more", world), ("less", less))
    }
    assert all(more <= less + 1e-12 for more, less in zip(seconds["more"], seconds["less"], strict=True))


def test_with_all_drafts_in_memory_for_nothing_it_is_the_clairvoyant() -> None:
    world = costly_world(10_000, contention=False)
    results = oracle_results(world.streams(0, 3), world)
    seconds = {(r.controller, r.stream): r.seconds for r in results}
    for index in range(3):
        assert seconds["oracle_budget", index] == pytest.approx(seconds["oracle_clairvoyant", index], abs=1e-9)


def reach(right: list[int], step_s: float, round_s: float = 0.0) -> Reach:
    runs = np.array(right)
    return Reach(runs, np.full(len(runs), LONGEST), np.zeros((len(STOP_LEVELS), len(runs)), np.int64), step_s, round_s)


def two_drafts(seed: int) -> list[Foresight]:
    """Two short requests; the drafts are right in different parts."""
    rng = np.random.default_rng(seed)
    requests = []
    for _ in range(2):
        end = int(rng.integers(1, 6))
        verify_s = 0.1 + rng.uniform(0.0, 0.02, (LONGEST + 1, 1)) * np.arange(LONGEST + 1)[:, None] + np.zeros((1, end))
        drafts = tuple(reach(rng.integers(0, 4, end).tolist(), float(rng.uniform(0.0, 0.02))) for _ in range(2))
        weightless = reach(rng.integers(0, 2, end).tolist(), 0.0, 0.01)
        requests.append(Foresight(5, end, end + 1, verify_s, (*drafts, weightless), 1.0, 0))
    return requests


def by_brute_force(requests: list[Foresight], loads_s: tuple[float, float], slots: int) -> float:
    """Every sequence of rounds, loads and evictions, tried."""

    @cache
    def least(index: int, at: int, held: frozenset[int], loading: int) -> float:
        if index == len(requests):
            return 0.0
        request = requests[index]
        if at >= request.end:
            return least(index + 1, 1, held, 2)
        options = [request.verify_s[0, at] + least(index, at + 1, held, 2)]
        for draft in (*held, 2):
            one = request.drafts[draft]
            for sent in range(1, min(LONGEST, request.most - at - 1) + 1):
                cost = one.round_s + sent * one.step_s + request.verify_s[sent, at]
                options.append(cost + least(index, min(at + min(sent, int(one.right[at])) + 1, request.end), held, 2))
        for draft in ({0, 1} - held) if loading else ():
            keeps = [frozenset(keep) for n in range(slots) for keep in combinations(held, n)]
            options += [loads_s[draft] + least(index, at, keep | {draft}, loading - 1) for keep in keeps]
        return float(min(options))

    return least(0, 1, frozenset(), 2)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_two_drafts_by_brute_force(seed: int, slots: int) -> None:
    requests, names = two_drafts(seed), ("code", "math", "lookup")
    profile = make_profile(names)
    rng = np.random.default_rng(1000 + seed)
    loads_s = (float(rng.uniform(0.0, 0.15)), float(rng.uniform(0.0, 0.15)))
    drafts = {
        name: replace(profile.drafts[name], load_s=load_s) for name, load_s in zip(names, (*loads_s, 0.0), strict=True)
    }
    costs = CostModel(replace(profile, drafts=drafts, decode_slowdown=10.0, load_slowdown=2.0), names)
    sets = WorkingSets.of(make_specs(names), costs, MemoryConfig(100 + 1000 * slots, workspace_bytes=100))
    assert len(sets.sets) == 2 + slots
    least_s = budget_s(requests, sets)
    assert least_s == pytest.approx(by_brute_force(requests, loads_s, slots), abs=1e-12)
    assert least_s >= sum(map(clairvoyant_s, requests)) - 1e-12


def test_a_load_that_pays_only_over_two_requests_is_made() -> None:
    """One draft, always right: a round of 8 guesses saves 0.4 s in each request, its load costs 0.6 s."""
    verify_s = np.full((LONGEST + 1, 6), 0.1)
    request = Foresight(5, 6, 20, verify_s, (reach([6, 5, 4, 3, 2, 1], 0.0),), 1.0, 0)
    profile = make_profile(("code",), load_s=0.6)
    costs = CostModel(replace(profile, decode_slowdown=10.0, load_slowdown=2.0), ("code",))
    sets = WorkingSets.of(make_specs(("code",)), costs, MemoryConfig(1000))
    assert budget_s([request], sets) == pytest.approx(0.5)
    assert budget_s([request] * 2, sets) == pytest.approx(0.8)


def test_a_draft_gives_way_to_another_where_that_pays() -> None:
    """Room for one; each draft is always right in one request. A round of 8 guesses saves 0.4 s, a load costs 0.1 s."""
    verify_s = np.full((LONGEST + 1, 6), 0.1)
    right, wrong = reach([6, 5, 4, 3, 2, 1], 0.0), reach([0] * 6, 0.0)
    first, second = (Foresight(5, 6, 20, verify_s, pair, 1.0, 0) for pair in ((right, wrong), (wrong, right)))
    names = ("code", "math")
    costs = CostModel(replace(make_profile(names, load_s=0.1), decode_slowdown=10.0, load_slowdown=2.0), names)
    sets = WorkingSets.of(make_specs(names), costs, MemoryConfig(1000))
    assert len(sets.sets) == 3
    assert budget_s([first, second], sets) == pytest.approx(0.4)
    assert budget_s([first, second, first], sets) == pytest.approx(0.6)


def test_sets_are_those_that_fit() -> None:
    names = (*DRAFTS, "story")
    sizes = {"code": 400, "math": 950, "prose": 1300, "lookup": 100, "story": 250}
    drafts = tuple(DraftSpec(name, sizes[name], loadable=name != "lookup") for name in names)
    memory = MemoryConfig(1500, workspace_bytes=100)  # 1300 are left; code and math take 1350
    sets = WorkingSets.of(drafts, CostModel(make_profile(names), names), memory)
    assert set(map(tuple, map(sorted, sets.sets))) == {(), (0,), (1,), (2,), (4,), (0, 4), (1, 4)}
    assert sets.sets[0] == frozenset()
    assert [load.draft for load in sets.loads] == [0, 1, 2, 4]
    for load in sets.loads:
        for without, with_it in zip(load.without, load.with_it, strict=True):
            assert sets.sets[with_it] == sets.sets[without] | {load.draft} != sets.sets[without]


@pytest.mark.parametrize(
    ("decode_slowdown", "load_slowdown", "loss_s"),
    [(1.0, 3.0, 0.0), (0.9, 3.0, 0.0), (2.0, 1.0, 0.25), (2.0, 0.5, 0.25), (2.0, 1.5, 0.375), (4.0, 2.0, 0.5)],
)
def test_a_load_takes_the_lesser_of_waiting_and_contention(
    decode_slowdown: float, load_slowdown: float, loss_s: float
) -> None:
    assert load_loss_s(slowed(0.5, decode_slowdown, load_slowdown), 0) == pytest.approx(loss_s)
    assert load_loss_s(slowed(0.5, decode_slowdown, load_slowdown), 3) == 0.0  # lookup


def test_too_many_sets_are_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(oracle_budget, "MOST_SETS", 6)
    world = costly_world()
    with pytest.raises(UserError, match="follows at most 6 sets of drafts, got more from 3 drafts in 2800 bytes"):
        WorkingSets.of(world.drafts, world.costs, world.config.memory)
    with caplog.at_level(logging.WARNING):
        names = {r.controller for r in oracle_results(world.streams(0, 1), world)}
    assert names == {"oracle_perfect", "oracle_clairvoyant"}
    assert "smaller budget or fewer drafts" in caplog.text
