"""AdaEDL's threshold: up while too little is accepted, down while more than enough is."""

from __future__ import annotations

import pytest

from runtime.control.adaedl import AdaEdlController
from runtime.core import STOP_LEVELS, StopRule
from tests.control.observing import N, outcome, see


def test_one_draft_stops_by_entropy() -> None:
    decision = AdaEdlController(N, 1, 8, 2).decide(see())
    assert (decision.draft, decision.gamma, decision.stop, decision.rule) == (1, 8, 2, StopRule.ENTROPY)


def test_the_threshold_follows_the_acceptance_seen() -> None:
    controller = AdaEdlController(N, 0, stop=2, target=0.5, step=0.01)
    start = controller.threshold
    controller.learn(outcome(4, 0))  # running rate 0.25: too little is accepted
    assert controller.threshold == pytest.approx(start + 0.01)
    controller.learn(outcome(4, 4))  # 0.625
    controller.learn(outcome(4, 4))
    assert controller.threshold == pytest.approx(start - 0.01)
    controller.learn(outcome(0, 0))
    assert controller.threshold == pytest.approx(start - 0.01)


def test_the_level_next_to_the_threshold_is_used_within_the_scale() -> None:
    controller = AdaEdlController(N, 0, stop=1, target=0.9, step=0.01)
    for _ in range(100):
        controller.learn(outcome(4, 0))
    assert controller.threshold == STOP_LEVELS[-1] and controller.decide(see()).stop == len(STOP_LEVELS) - 1
    controller = AdaEdlController(N, 0, stop=1, target=0.1, step=0.01)
    levels = [controller.decide(see()).stop]
    for _ in range(100):
        controller.learn(outcome(4, 4))
        levels.append(controller.decide(see()).stop)
    assert controller.threshold == 0.0 and levels[0] == 1 and levels[-1] == 0 and levels == sorted(levels)[::-1]
    controller.begin_stream()
    assert controller.threshold == STOP_LEVELS[1]


def test_a_fixed_threshold_stays() -> None:
    controller = AdaEdlController(N, 0, stop=3, target=None)
    controller.learn(outcome(8, 0))
    assert controller.threshold == STOP_LEVELS[3]
