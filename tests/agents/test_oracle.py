from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.bandits import EpsilonGreedyController, UcbController
from agents.foresight import LONGEST, Foresight, Reach, foresee
from agents.oracle import clairvoyant_s, clairvoyant_values, oracle_results, perfect_choice_s, rounds_of
from agents.serving import serve
from envs.replay.bank import TraceBank
from envs.replay.clock import VirtualClock
from envs.replay.decoder import ReplayDecoder
from envs.replay.loader import VirtualLoader
from runtime.control.base import Controller
from runtime.control.memspec import MemSpecController
from runtime.control.static import StaticController, plain_controller
from runtime.core import GAMMAS, STOP_LEVELS
from tests.agents.players import scripted_item
from tests.factories import make_costs, make_specs, make_world
from tests.replay.scripted import make_trace, make_traces

NAMES = ("code", "math", "lookup")


@st.composite
def requests(draw: st.DrawFn) -> Foresight:
    """A short made-up request of two drafts."""
    length = draw(st.integers(1, 7))
    most = draw(st.integers(length, length + 3))

    def reach(weightless: bool) -> Reach:
        made = [draw(st.integers(0, 4)) for _ in range(length)]
        right = [draw(st.integers(0, length - at)) for at in range(length)]
        cost = draw(st.floats(0.01, 0.5))
        sent = np.zeros((len(STOP_LEVELS), length), dtype=np.int64)
        return Reach(np.array(right), np.array(made), sent, 0.0 if weightless else cost, cost if weightless else 0.0)

    verify = [[draw(st.floats(0.5, 3.0)) for _ in range(length)] for _ in range(LONGEST + 1)]
    return Foresight(5, length, most, np.array(verify), (reach(False), reach(True)), 1.0, 0)


def by_brute_force(request: Foresight, begin: int) -> float:
    """Every sequence of rounds from one position, tried."""

    def least(at: int) -> float:
        if at >= request.end:
            return 0.0
        options = [request.verify_s[0, at] + least(at + 1)]
        for reach in request.drafts:
            for sent in range(1, LONGEST + 1):
                if sent <= reach.made[at] and sent <= request.most - at - 1:
                    cost = reach.round_s + sent * reach.step_s + request.verify_s[sent, at]
                    options.append(cost + least(at + min(sent, int(reach.right[at])) + 1))
        return float(min(options))

    return least(begin)


@given(requests())
@settings(max_examples=60, deadline=None)
def test_clairvoyant_equals_brute_force(request: Foresight) -> None:
    values = clairvoyant_values(request)
    assert values.shape == (request.end + 1,)
    assert values[1:].tolist() == pytest.approx([by_brute_force(request, at) for at in range(1, request.end + 1)])
    assert values[0] == values[1] == clairvoyant_s(request)


@cache
def scripted_bank() -> TraceBank:
    traces = make_traces([make_trace(seed) for seed in range(12)])
    return TraceBank(traces, make_specs(NAMES), make_costs(NAMES))


@pytest.mark.parametrize("cut", [0, 3])
@pytest.mark.parametrize("stop", range(len(STOP_LEVELS)))
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("draft", range(len(NAMES)))
def test_foresight_equals_replay_round_by_round(draft: int, gamma: int, stop: int, cut: int) -> None:
    """Same tokens and, catch-up apart, same time."""
    bank = scripted_bank()
    stream = tuple(scripted_item(seed, cut) for seed in range(8))
    clock = VirtualClock()
    decoder = ReplayDecoder(bank, VirtualLoader(bank.costs.model, clock))
    for item, ahead in zip(stream, foresee(stream, bank), strict=True):
        arm = rounds_of(ahead, gamma, stop)[1 + draft]
        decoder.begin(item.request, 0, ())
        at = 1
        while at < ahead.end:
            began_s = clock.now_s()
            done = decoder.round(draft, None, gamma, STOP_LEVELS[stop])
            absorbing_s = bank.costs.draft_s(draft, 1 + done.catch_up_tokens) - bank.costs.draft_s(draft, 1)
            assert len(done.tokens) == arm.tokens[at]
            assert clock.now_s() - began_s - absorbing_s == pytest.approx(arm.seconds[at])
            at += len(done.tokens)
        assert at == ahead.end


def test_no_controller_beats_the_clairvoyant() -> None:
    world = make_world(requests=6, budget_bytes=100_000)
    streams = world.streams(0, 3)
    bounds = {(r.controller, r.stream): r for r in oracle_results(streams, world)}
    controllers: list[Controller] = [
        plain_controller(3),
        plain_controller(3, reuse_kv=True),
        MemSpecController(3, 2, 2),
        EpsilonGreedyController(3, 4, 1),
        UcbController(3, 2),
        *(StaticController(3, draft, gamma, stop) for draft in range(3) for gamma in GAMMAS for stop in (0, 2)),
    ]
    assert len(bounds) == 3 * len(streams)
    for index, stream in enumerate(streams):
        clairvoyant = bounds["oracle_clairvoyant", index]
        assert clairvoyant.seconds <= bounds["oracle_perfect", index].seconds
        for controller in controllers:
            result, _ = serve(controller, stream, world.session(), controller.name)
            assert result.tokens == clairvoyant.tokens
            assert clairvoyant.seconds <= result.seconds + 1e-9
            assert clairvoyant.kv_hit_tokens >= result.kv_hit_tokens


def test_perfect_choice_is_at_least_the_best_draft_for_a_window() -> None:
    """A single window: no draft alone is quicker."""
    bank = scripted_bank()
    for ahead in foresee(tuple(scripted_item(seed) for seed in range(8)), bank):
        if not 1 < ahead.end <= 17:
            continue
        chosen_s = perfect_choice_s(ahead, 4, 0)
        for arm in rounds_of(ahead, 4, 0):
            at, alone_s = 1, 0.0
            while at < ahead.end:
                alone_s += arm.seconds[at]
                at += arm.tokens[at]
            assert chosen_s <= alone_s + 1e-9


def test_prefixes_of_earlier_requests_are_reused_where_that_pays() -> None:
    world = make_world(requests=4)
    stream = world.streams(0, 1)[0]
    ahead = foresee(stream, world.bank)
    assert ahead[0].reused == 0
    assert all(request.reused >= 10 for request in ahead[1:])  # prompts start alike
    assert all(request.prefill_s < ahead[0].prefill_s for request in ahead[1:])
