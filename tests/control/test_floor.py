"""The books of the floor promise, against adding up every run of tokens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.control.floor import KEPT_BACK, Floor


def worst_run(steps: list[tuple[int, float]], window: int) -> float:
    """Most that a run of at most ``window`` tokens ending now has lost, added up one by one."""
    worst = total = 0.0
    tokens = 0
    for committed, loss in reversed(steps):
        tokens += committed
        if tokens > window:
            break
        total += loss
        worst = max(worst, total)
    return worst


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(-3.0, 3.0)), max_size=60), st.integers(5, 40))
def test_lost_is_what_the_worst_recent_run_lost(steps: list[tuple[int, float]], window: int) -> None:
    floor = Floor(window)
    for at, (tokens, loss) in enumerate(steps):
        floor.note(tokens, loss)
        assert floor.lost == pytest.approx(worst_run(steps[: at + 1], window), abs=1e-9)


def test_gains_of_long_ago_do_not_pay_for_losses_now() -> None:
    floor = Floor(window=100)
    floor.note(50, -40.0)
    assert floor.lost == 0.0
    floor.note(50, 1.0)
    assert floor.lost == 1.0


def test_what_asks_first_never_breaks_the_promise() -> None:
    """Losses of known size, taken whenever they are allowed."""
    rng = random.Random(0)
    floor, steps = Floor(window=200, share=0.02), list[tuple[int, float]]()
    for _ in range(3000):
        loss = rng.uniform(0.0, 2.0)
        step = (1, loss) if floor.allows(loss) else (1, 0.0)
        floor.note(*step)
        steps.append(step)
    runs = [sum(loss for _, loss in steps[at : at + 200]) for at in range(len(steps) - 200)]
    assert max(runs) <= 0.02 * 200 * (1.0 - KEPT_BACK) + 1e-9
    assert max(runs) > 0.5 * 0.02 * 200, "the allowance is used, not just never touched"


def test_after_a_plain_window_it_allows_again() -> None:
    floor = Floor(window=50, share=0.1)
    floor.note(1, floor.allowance)
    assert not floor.allows(0.1)
    for _ in range(51):
        floor.note(1, 0.0)
    assert floor.allows(floor.allowance)
