"""Intervals of a ratio of speeds."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.cli.benching.intervals import Work, ratio


def work(tokens: list[float], seconds: list[float]) -> Work:
    return Work(np.array(tokens), np.array(seconds))


def test_the_ratio_is_of_totals() -> None:
    over, under = work([10, 30], [1, 6]), work([10, 30], [2, 8])
    assert ratio(over, under).value == pytest.approx(10 / 7)


def test_a_ratio_that_never_changes_has_no_width() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.uniform(1, 9, size=12)
    tokens = rng.uniform(10, 90, size=12)
    found = ratio(Work(tokens, seconds / 1.5), Work(tokens, seconds))
    assert found.value == pytest.approx(1.5) and found.interval == pytest.approx((1.5, 1.5))


def test_one_prompt_has_no_interval() -> None:
    assert ratio(work([8], [1]), work([8], [2])) == (2.0, None)


def test_pairing_takes_out_what_prompts_differ_in() -> None:
    """Prompts of very different length: unpaired draws would give a far wider interval."""
    rng = np.random.default_rng(1)
    tokens = np.full(20, 64.0)
    seconds = rng.uniform(0.5, 20.0, size=20)
    found = ratio(Work(tokens, seconds / rng.normal(2.0, 0.02, size=20)), Work(tokens, seconds))
    assert found.interval is not None
    low, high = found.interval
    assert low < found.value < high and high - low < 0.05


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for trial in range(300):
        tokens = np.full(30, 64.0)
        seconds = rng.uniform(1.0, 3.0, size=30)
        found = ratio(Work(tokens, seconds * rng.uniform(0.5, 0.7, size=30)), Work(tokens, seconds), 400, seed=trial)
        assert found.interval is not None
        held += found.interval[0] <= 1 / 0.6 <= found.interval[1]
    assert 0.89 <= held / 300 <= 0.985  # a little below 0.95 is the percentile method's own
