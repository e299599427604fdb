"""A policy is refused where costs are far from those it was trained for, and told how far."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runtime.errors import UserError
from runtime.nearness import MOST_FACTOR, distance, refuse_unless_near
from runtime.profile import Curve, Profile
from tests.factories import make_profile


def scaled(curve: Curve, factor: float) -> Curve:
    return Curve(curve.x, tuple(second * factor for second in curve.seconds))


def all_times(profile: Profile, factor: float) -> Profile:
    """A device that is slower or faster at everything."""
    drafts = {
        name: dataclasses.replace(cost, forward=scaled(cost.forward, factor), load_s=cost.load_s * factor)
        for name, cost in profile.drafts.items()
    }
    curves: dict[str, Any] = {name: scaled(getattr(profile, name), factor) for name in ("forward", "decode", "prefill")}
    overhead_s = profile.round_overhead_s * factor
    return dataclasses.replace(profile, drafts=drafts, round_overhead_s=overhead_s, **curves)


def loads(profile: Profile, factor: float) -> Profile:
    """A device whose storage is slower."""
    drafts = {name: dataclasses.replace(cost, load_s=cost.load_s * factor) for name, cost in profile.drafts.items()}
    return dataclasses.replace(profile, drafts=drafts)


@pytest.fixture
def known() -> Profile:
    return make_profile(("one", "two"))


def test_the_same_device_is_near(known: Profile) -> None:
    assert distance(known, known).factor == pytest.approx(1.0)
    refuse_unless_near(known, known)


def test_a_faster_device_with_the_same_ratios_is_near(known: Profile) -> None:
    assert distance(known, all_times(known, 0.1)).factor == pytest.approx(1.0)


@pytest.mark.parametrize(("factor", "word"), [(MOST_FACTOR * 1.5, "more"), (1 / (MOST_FACTOR * 1.5), "less")])
def test_a_far_device_is_refused_and_the_distance_told(known: Profile, factor: float, word: str) -> None:
    here = loads(known, factor)
    far = distance(known, here)
    assert far.what.startswith("loading draft") and far.factor == pytest.approx(MOST_FACTOR * 1.5)
    with pytest.raises(UserError, match=rf"loading draft 'one' takes .* 6\.0 times {word}, expected at most 4 times"):
        refuse_unless_near(known, here)
    refuse_unless_near(known, loads(known, MOST_FACTOR * 0.9))


def test_costs_that_decide_nothing_are_not_compared(known: Profile) -> None:
    free = loads(known, 1e-9)
    assert distance(free, loads(known, 1e-6)).factor == pytest.approx(1.0)
