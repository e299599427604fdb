"""The one loop: what a decision means, in every phase."""

from __future__ import annotations

import logging

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from runtime.control.memspec import MemSpecController
from runtime.control.rakv_asd import RakvAsdController, expected_committed
from runtime.control.static import StaticController, plain_controller
from runtime.core import PLAIN, Decision, Outcome, Phase, Victim
from runtime.session import DecodeSession
from tests.factories import NAMES, make_costs, make_world


def serve(session: DecodeSession, controller: object, stream: object) -> list[Outcome]:
    session.start(item.request for item in stream)  # type: ignore[attr-defined]
    outcomes: list[Outcome] = []
    while not outcomes or not outcomes[-1].stream_finished:
        outcomes.append(session.advance(controller.decide(session.observe())))  # type: ignore[attr-defined]
    return outcomes


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(300, 4000))
def test_any_decisions_yield_the_recorded_text_within_the_budget(seed: int, budget_bytes: int) -> None:
    world = make_world(budget_bytes=budget_bytes)
    stream = world.generator.stream(seed, 0)
    session, rng = world.session(), np.random.default_rng(seed)
    session.start(item.request for item in stream)
    text: list[int] = []
    finished = False
    while not finished:
        decision = session.codec.decode(rng.integers(0, session.codec.nvec))
        if rng.random() < 0.2:
            decision = decision._replace(wait=True)
        if rng.random() < 0.5:
            session.observe()
        outcome = session.advance(decision)
        assert outcome.seconds >= outcome.stall_s >= 0.0
        assert session.memory.used_bytes <= max(budget_bytes, 100)
        if outcome.round is not None:
            done = outcome.round
            assert done.accepted <= done.drafted <= done.steps or done.steps == 0
            assert len(done.tokens) <= done.accepted + 1
        text += outcome.tokens
        finished = outcome.stream_finished
    assert text == [token for item in stream for token in item.trace.output_ids]
    counters = session.counters
    assert counters.committed == len(text)
    assert counters.peak_budget_bytes <= max(budget_bytes, 100)


def test_background_loads_never_stall_and_on_demand_loads_do() -> None:
    world = make_world()
    stream = world.streams(0, 1)[0]
    session = world.session()
    outcomes = serve(session, MemSpecController(len(NAMES), 4), stream)
    assert session.counters.loads > 0 and session.counters.stall_s == 0.0
    loading = [o for o in outcomes if o.phase is Phase.DECODE and o.decision.draft is None]
    assert loading, "rounds commit while the first load is in flight"
    session = world.session()
    session.start(item.request for item in stream)
    session.advance(PLAIN)
    outcome = session.advance(Decision(draft=0, gamma=2, wait=True))
    assert outcome.stall_s == pytest.approx(0.25) and outcome.round is not None and outcome.round.steps > 0


def test_reuse_forwards_only_what_is_not_stored() -> None:
    world = make_world()
    stream = world.streams(0, 1)[0]
    outcomes = serve(world.session(), plain_controller(len(NAMES), reuse_kv=True), stream)
    admitted = [o for o in outcomes if o.phase is Phase.ADMIT]
    assert admitted[0].reused_tokens == 0 and all(o.reused_tokens == 10 for o in admitted[1:])
    for outcome, item in zip(admitted, stream, strict=True):
        assert outcome.prefill_tokens + outcome.reused_tokens == len(item.request.prompt_ids)


def test_a_draft_in_use_is_never_evicted() -> None:
    world = make_world(budget_bytes=1200)  # room for one draft
    session = world.session()
    session.start(item.request for item in world.streams(0, 1)[0])
    session.advance(PLAIN)
    session.advance(Decision(draft=0, gamma=1, wait=True))
    for _ in range(4):
        outcome = session.advance(Decision(draft=0, gamma=1, prefetch=1, victim=Victim.DRAFTS))
        assert outcome.round is not None and session.memory.resident(0) and not session.memory.loading(1)


def test_heuristics_never_give_up_a_draft_to_keep_kv() -> None:
    """Prompt and answer take 700 bytes of KV; beside the one draft only 400 are free."""
    world = make_world(budget_bytes=1500)
    session = world.session()
    serve(session, StaticController(len(NAMES), 0, 4), world.streams(0, 1)[0])
    assert session.memory.resident(0) and session.counters.loads == 1 and session.counters.evictions == 0


def test_a_budget_too_small_for_any_draft_runs_plain_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(budget_bytes=500)
    with caplog.at_level(logging.WARNING):
        session = world.session()
        outcomes = serve(session, StaticController(len(NAMES), 0, 4), world.streams(0, 1)[0])
    assert len(caplog.records) == 1 and "no draft model fits" in caplog.text
    assert all(o.decision.draft is None for o in outcomes)


def test_an_illegal_choice_falls_back_and_is_counted() -> None:
    session = make_world().session()
    session.start(item.request for item in make_world().streams(0, 1)[0])
    session.advance(PLAIN)
    outcome = session.advance(Decision(draft=0, gamma=8, kv=True))
    assert outcome.decision.draft is None and not outcome.decision.kv and outcome.illegal == 2


def test_advance_without_a_request_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"call start\(\)"):
        make_world().session().advance(PLAIN)


def test_rakv_breaks_even_where_acceptance_equals_the_cost_ratio() -> None:
    """At gamma 1, 1 + a tokens for verify + draft: speculation pays above a = verify + draft - 1.

    llama.cpp #25908: what a guess costs decides, not how many are accepted.
    """
    costs = make_costs()
    controller = RakvAsdController(len(NAMES), 0, costs)
    session = make_world().session()
    session.start(item.request for item in make_world().streams(0, 1)[0])
    session.advance(PLAIN)
    break_even = costs.forward_s(2, 100) / costs.plain_s(100) + float(costs.step_ratios[0]) - 1.0
    for acceptance, speculates in ((break_even - 0.01, False), (break_even + 0.3, True)):
        session._evidence.acceptance[0] = acceptance
        observation = session.observe()
        catch_up = float(observation.per_draft("catch_up_cost")[0])
        if not speculates:
            assert controller.best_gamma(observation) == 0
        else:
            assert catch_up < 0.4 and controller.best_gamma(observation) > 0
    assert expected_committed(0.5, 1) == pytest.approx(1.5) and expected_committed(1.0, 4) == 5.0
