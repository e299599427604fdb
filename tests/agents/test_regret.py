from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from agents.evaluation import evaluate
from agents.foresight import LONGEST, Foresight, Reach
from agents.oracle import oracle_results
from agents.oracle_budget import load_loss_s
from agents.regret import CAUSES, Hindsight, Regret, look_back, regret_of, regret_report, step_regret
from agents.timeline import Step, record_timeline
from envs.replay.bank import TraceBank
from runtime.control.static import plain_controller
from runtime.core import STOP_LEVELS, Phase
from tests.agents.players import NAMES, RandomController, costly_world, players, scripted_item
from tests.factories import make_costs, make_specs, make_traces, make_world
from tests.replay.scripted import make_trace
from tests.replay.scripted import make_traces as scripted_traces

EXACT = 1e-9


@cache
def report(disk_bytes: int = 0) -> dict[str, Regret]:
    world = costly_world(disk_bytes=disk_bytes)
    return {regret.controller: regret for regret in regret_report(players(), world.streams(0, 2), world)}


@pytest.mark.parametrize("disk_bytes", [0, 2000])
def test_parts_add_up_to_the_time_above_the_bound(disk_bytes: int) -> None:
    world = costly_world(disk_bytes=disk_bytes)
    streams = world.streams(0, 2)
    bound_s = sum(r.seconds for r in oracle_results(streams, world) if r.controller == "oracle_clairvoyant")
    results = evaluate(players(), streams, world.session)
    assert list(report(disk_bytes)) == list(players())
    for name, regret in report(disk_bytes).items():
        assert regret.seconds == pytest.approx(sum(r.seconds for r in results if r.controller == name))
        assert regret.bound_s == pytest.approx(bound_s)
        assert list(regret.parts) == list(CAUSES)
        assert sum(regret.parts.values()) == pytest.approx(regret.seconds - regret.bound_s, abs=1e-6)


@pytest.mark.parametrize("contention", [True, False])
@pytest.mark.parametrize("name", ["plain", "memspec", "random", "random_2", "static:1:8", "static:3:8"])
def test_no_part_of_any_step_is_negative(name: str, contention: bool) -> None:
    world = costly_world(contention=contention, disk_bytes=2000 * contention)
    stream = world.streams(1, 1)[0]
    hindsight = look_back([stream], world.bank)[0]
    loading = 0.0
    for step in record_timeline(players()[name](), stream, world.session(), name).steps:
        parts = step_regret(step, hindsight[step.request], world.bank)
        assert all(seconds >= -EXACT for seconds in parts.values()), (step, parts)
        loading += parts["loading"]
    if not contention:
        assert loading == pytest.approx(0.0, abs=EXACT)  # loads take no time and nobody is slowed down


@pytest.mark.parametrize("cut", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_texts_that_end_and_repeat_add_up_too(seed: int, cut: int) -> None:
    """With the lookup draft guessing, and texts that end of themselves or are cut."""
    traces = scripted_traces([make_trace(seed) for seed in range(12)])
    world = replace(make_world(), traces=traces)
    stream = tuple(scripted_item(index, cut) for index in range(12))
    hindsight = look_back([stream], world.bank)
    timeline = record_timeline(RandomController(3, seed), stream, world.session(), "random")
    assert {step.draft for step in timeline.steps if step.accepted} == {0, 1, 2}
    for step in timeline.steps:
        parts = step_regret(step, hindsight[0][step.request], world.bank)
        assert all(seconds >= -EXACT for seconds in parts.values()), (step, parts)
    regret = regret_of([timeline], [stream], world.bank, hindsight)
    assert sum(regret.parts.values()) == pytest.approx(regret.seconds - regret.bound_s, abs=1e-6)


def test_every_cause_is_met_and_blamed_on_the_right_ones() -> None:
    parts = {name: regret.parts for name, regret in report().items()}
    assert all(any(each[cause] > 0.01 for each in parts.values()) for cause in CAUSES)
    for cause in ("too_short", "too_long", "catch_up", "loading"):
        assert parts["plain"][cause] == pytest.approx(0.0, abs=EXACT)
    assert parts["plain"]["residency"] > 0.5
    assert parts["random"]["wrong_draft"] > parts["memspec"]["wrong_draft"] > 0.0
    assert parts["static:0:8"]["too_long"] > parts["static:0:2"]["too_long"]
    assert parts["static:0:8"]["too_short"] < parts["static:0:2"]["too_short"]
    assert parts["static:3:2"]["loading"] == pytest.approx(0.0, abs=EXACT)
    assert parts["static:0:2"]["loading"] == pytest.approx(2 * load_loss_s(costly_world().costs, 0))


def test_prompts_computed_again_are_kv_regret() -> None:
    world = costly_world()
    stream = world.streams(0, 1)[0]
    timeline = record_timeline(plain_controller(len(NAMES)), stream, world.session(), "plain")
    again_s = [request.request.prefill_s for request in look_back([stream], world.bank)[0]]
    whole_s = [world.costs.prefill_s(len(item.request.prompt_ids), 0) for item in stream]
    regret = regret_of([timeline], [stream], world.bank)
    assert regret.parts["kv"] == pytest.approx(sum(whole_s) - sum(again_s))


def test_only_the_streams_recorded_count() -> None:
    world = costly_world()
    streams = world.streams(0, 3)
    timeline = record_timeline(plain_controller(len(NAMES)), streams[2], world.session(), "plain", 2)
    alone = record_timeline(plain_controller(len(NAMES)), streams[2], world.session(), "plain")
    assert regret_of([timeline], streams, world.bank) == regret_of([alone], streams[2:], world.bank)


# -- one round by hand: a plain step takes 1 s, a guess 0.1 s, verifying is free --------------------------------------


def hindsight(right: int, of_other: int = 0) -> Hindsight:
    """Five tokens to go, plain alone gets further behind position 2; two drafts are right so often at position 1."""
    length = 6

    def reach(runs: int) -> Reach:
        right = np.zeros(length, dtype=np.int64)
        right[1] = runs
        made = np.where(np.arange(length) == 1, LONGEST, 0)
        return Reach(right, made, np.zeros((len(STOP_LEVELS), length), np.int64), 0.01, 0.0)

    verify_s = np.full((LONGEST + 1, length), 0.1)
    return Hindsight.of(Foresight(5, length, 20, verify_s, (reach(right), reach(of_other)), 1.0, 0))


def one_round(draft: int | None, drafted: int, accepted: int, steps: int, seconds: float, **more: object) -> Step:
    step = Step(
        request=0,
        phase=Phase.DECODE,
        position=1,
        start_s=3.0,
        end_s=3.0 + seconds,
        stall_s=0.0,
        draft=draft,
        gamma=8 if drafted else 0,
        stop=0,
        steps=steps,
        drafted=drafted,
        accepted=accepted,
        committed=accepted + 1,
        catch_up_tokens=0,
        reused_tokens=0,
        resident=(0, 1),
        loading=(),
        kv_bytes=0,
    )
    return replace(step, **more)  # type: ignore[arg-type]


@cache
def bank() -> TraceBank:
    names = ("code", "math")
    return TraceBank(make_traces(names), make_specs(names), make_costs(names))


def parts_of(step: Step, request: Hindsight) -> dict[str, float]:
    parts = step_regret(step, request, bank())
    assert sum(parts.values()) == pytest.approx(
        step.end_s - step.start_s + request.values[1 + step.committed] - request.values[1]
    )
    return {cause: round(seconds, 9) for cause, seconds in parts.items() if abs(seconds) > EXACT}


def test_the_best_round_has_no_regret() -> None:
    assert parts_of(one_round(0, 3, 3, 3, 0.13), hindsight(3)) == {}


def test_a_guess_too_few_costs_a_plain_step_less_the_guess() -> None:
    assert parts_of(one_round(0, 2, 2, 2, 0.12), hindsight(3)) == {"too_short": 0.09}


def test_a_guess_too_many_costs_its_time() -> None:
    assert parts_of(one_round(0, 4, 3, 4, 0.14), hindsight(3)) == {"too_long": 0.01}


def test_a_worse_draft_in_memory_is_the_wrong_one() -> None:
    assert parts_of(one_round(0, 1, 1, 1, 0.11), hindsight(1, of_other=3)) == {"wrong_draft": 0.18}


def test_plain_beside_a_good_draft_is_the_wrong_draft() -> None:
    assert parts_of(one_round(None, 0, 0, 0, 0.1), hindsight(3)) == {"wrong_draft": 0.27}


def test_a_draft_that_cannot_help_is_wrong_beside_plain() -> None:
    assert parts_of(one_round(1, 1, 0, 1, 0.11), hindsight(0)) == {"wrong_draft": 0.01}


def test_a_better_draft_not_in_memory_is_residency() -> None:
    step = one_round(0, 1, 1, 1, 0.11, resident=(0,))
    assert parts_of(step, hindsight(1, of_other=3)) == {"residency": 0.18}


def test_a_draft_that_was_waited_for_is_in_memory() -> None:
    step = one_round(0, 3, 3, 3, 0.63, resident=(), stall_s=0.5)
    assert parts_of(step, hindsight(3)) == {"loading": 0.5}


def test_absorbing_is_catch_up_and_the_rest_is_loading() -> None:
    """A forward of the made-up draft takes 1 ms more a token."""
    step = one_round(0, 3, 3, 3, 0.15, catch_up_tokens=12)
    assert parts_of(step, hindsight(3)) == {"catch_up": 0.012, "loading": 0.008}


def test_waiting_for_stored_kv_is_kv_and_slower_prefill_is_loading() -> None:
    """Five prompt tokens take 5 ms, three of them restored 0.03 ms and the rest 2 ms; the best prefill takes 1 s."""
    step = one_round(None, 0, 0, 0, 0.5, phase=Phase.ADMIT, position=0, stall_s=0.2, reused_tokens=3)
    kv_s = 0.2 + 0.00003 + 0.002
    assert step_regret(step, hindsight(3), bank()) == pytest.approx({"kv": kv_s - 1.0, "loading": 0.5 - kv_s})


def test_copying_kv_is_kv() -> None:
    step = one_round(None, 0, 0, 0, 0.5, phase=Phase.COMPLETE, position=6, committed=0, retained_tokens=32)
    assert step_regret(step, hindsight(3), bank()) == pytest.approx({"kv": 0.00032, "loading": 0.49968})
