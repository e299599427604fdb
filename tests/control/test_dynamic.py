"""transformers' schedule: longer after a round that was all right, shorter after any other."""

from __future__ import annotations

from runtime.control.dynamic import HfDynamicController
from runtime.core import StopRule
from tests.control.observing import N, outcome, see


def gamma_of(controller: HfDynamicController) -> int:
    return controller.decide(see()).gamma


def test_the_length_follows_the_last_round() -> None:
    controller = HfDynamicController(N, 0, start=5)
    lengths = [gamma_of(controller)]
    for drafted, accepted in ((5, 5), (7, 7), (8, 8), (8, 7), (7, 0), (2, 2)):
        controller.learn(outcome(drafted, accepted))
        lengths.append(gamma_of(controller))
    assert lengths == [5, 7, 8, 8, 7, 6, 8]
    for _ in range(9):
        controller.learn(outcome(4, 1))
    assert gamma_of(controller) == 1


def test_rounds_without_guesses_say_nothing_and_a_stream_starts_anew() -> None:
    controller = HfDynamicController(N, 0, start=3)
    controller.learn(outcome(3, 3))
    controller.learn(outcome(0, 0))
    controller.learn(outcome(0, 0, draft=None))
    assert gamma_of(controller) == 5
    controller.begin_stream()
    assert gamma_of(controller) == 3


def test_the_default_of_today_is_a_long_constant_length_and_a_stop_on_raw_confidence() -> None:
    controller = HfDynamicController(N, 1, start=20, stop=2, constant=True)
    controller.learn(outcome(8, 0, draft=1))
    decision = controller.decide(see())
    assert (decision.draft, decision.gamma, decision.stop, decision.rule) == (1, 8, 2, StopRule.TOKEN)


def test_it_is_loaded_in_the_background_and_decodes_plainly_meanwhile() -> None:
    controller = HfDynamicController(N, 0)
    away = {"resident": (0.0, 1.0, 1.0)}
    decision = controller.decide(see(drafts=away))
    assert (decision.draft, decision.gamma, decision.prefetch, decision.wait) == (None, 0, 0, False)
    assert controller.decide(see()).prefetch is None
