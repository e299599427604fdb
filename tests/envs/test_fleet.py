"""A fleet: worlds on random devices, for one policy that serves many."""

from __future__ import annotations

import dataclasses
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings

from agents.serving import serve
from envs.fleet import Factors, Fleet, FleetRanges, fleet_of, make_fleet, on_another_device
from runtime.control.static import StaticController, plain_controller
from runtime.errors import UserError
from runtime.profile import Curve
from tests.factories import NAMES, make_profile, make_world
from tests.tiny_zoo import composed

RANGES = FleetRanges()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_factors_lie_within_their_ranges(seed: int) -> None:
    factors = RANGES.draw(np.random.default_rng(seed))
    for field in dataclasses.fields(factors):
        low, high = getattr(RANGES, field.name)
        assert low <= getattr(factors, field.name) <= high


def test_factors_are_log_uniform() -> None:
    rng = np.random.default_rng(0)
    drawn = [RANGES.draw(rng).verify for _ in range(2000)]  # 1/4 to 4: half of them below 1
    assert np.mean(np.array(drawn) < 1.0) == pytest.approx(0.5, abs=0.04)


def test_every_factor_scales_its_costs_and_nothing_else() -> None:
    plain = dataclasses.replace(make_profile(), kv_load=Curve((0.0, 10.0), (0.0, 1.0)))
    scaled = Factors(draft=2.0, verify=3.0, prefill=5.0, load=7.0, kv=11.0).profile(plain, "other")
    assert scaled.forward.seconds == pytest.approx((0.1, 0.1 + 3.0 * 0.08))
    assert scaled.drafts["code"].forward.at(1) == pytest.approx(0.02)
    assert scaled.drafts["code"].load_s == pytest.approx(7.0 * 0.25)
    assert scaled.prefill.at(100) == pytest.approx(0.5)
    assert scaled.kv_store.at(1000) == scaled.kv_restore.at(1000) == pytest.approx(0.11)
    assert scaled.kv_load is not None and scaled.kv_load.at(10) == pytest.approx(11.0)
    assert scaled.kv_save is None
    assert (scaled.decode, scaled.simulated, scaled.device) == (plain.decode, True, "other")
    assert Factors().profile(plain, plain.device) == dataclasses.replace(plain, simulated=True)


def test_the_workspace_is_not_scaled() -> None:
    memory = Factors(budget=0.5).memory(make_world().config.memory)
    assert (memory.workspace_bytes, memory.budget_bytes) == (100, 100 + 1200)


def test_the_same_seed_gives_the_same_fleet_and_a_larger_one_begins_alike() -> None:
    world = make_world()
    small, large = (make_fleet([world], RANGES, count, seed=4) for count in (2, 4))
    other = make_fleet([world], RANGES, 2, seed=5)
    profiles = [[each.costs.profile for each in fleet.worlds] for fleet in (small, large, other)]
    assert profiles[0] == profiles[1][:3]
    assert profiles[0][1:] != profiles[2][1:]
    assert small.worlds[0] is world


def test_texts_are_shared_and_costs_are_not() -> None:
    world = make_world()
    other = on_another_device(world, Factors(draft=2.0), "other")
    item = world.streams(0, 1)[0][0]
    ids, name = item.request.prompt_ids, item.request.request_id
    assert other.bank.text(ids, name) is world.bank.text(ids, name)
    assert other.bank.costs.draft_s(0, 1) == pytest.approx(2.0 * world.bank.costs.draft_s(0, 1))
    assert other.streams(1, 2) == world.streams(1, 2)


def test_a_slow_device_is_slow_where_its_costs_say() -> None:
    world = make_world()
    slow = on_another_device(world, Factors(draft=4.0, verify=4.0), "slow")
    stream = world.streams(0, 1)[0]

    def seconds(on: object, controller: object) -> float:
        result, _ = serve(controller, stream, on.session(), "x")  # type: ignore[arg-type, attr-defined]
        assert result.identical
        return result.seconds

    assert seconds(slow, plain_controller(3)) == pytest.approx(seconds(world, plain_controller(3)))
    assert seconds(slow, StaticController(3, 0, 8)) > 1.1 * seconds(world, StaticController(3, 0, 8))


def test_episodes_come_from_every_device() -> None:
    fleet = make_fleet([make_world()], RANGES, 3, seed=0)
    rng = np.random.default_rng(0)
    costs = {id(fleet.episode(rng).session.costs) for _ in range(40)}
    assert len(costs) == 4


def test_its_environment_is_one() -> None:
    env = make_fleet([make_world()], RANGES, 3, seed=0).env()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)
    first, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    assert np.array_equal(first, again)


def test_what_cannot_be_a_fleet_is_refused() -> None:
    with pytest.raises(UserError, match=r"device\.fleet\.load: expected two factors.*got \[2\.0, 1\.0\]"):
        FleetRanges(load=(2.0, 1.0))
    with pytest.raises(UserError, match="worlds of the same drafts"):
        Fleet((make_world(), make_world(NAMES[:2])))
    with pytest.raises(UserError, match="worlds of the same drafts"):
        Fleet(())


def test_the_configured_fleet_is_built() -> None:
    config = composed("config", "device=fleet").device.fleet
    values = {**config, "count": 2}
    fleet = fleet_of(make_world(), values)
    assert len(fleet.worlds) == 3
    assert FleetRanges(**{name: values[name] for name in values if name not in ("count", "seed")}) == RANGES
    with pytest.raises(UserError, match=r"device\.fleet: expected the keys budget, count.*got budget, draft"):
        fleet_of(make_world(), {name: values[name] for name in values if name != "count"})
    with pytest.raises(UserError, match=r"device\.fleet\.count: expected a whole number, at least 0, got -1"):
        fleet_of(make_world(), {**values, "count": -1})
    with pytest.raises(UserError, match=r"device\.fleet: expected two factors for every kind of cost"):
        fleet_of(make_world(), {**values, "kv": 2.0})
