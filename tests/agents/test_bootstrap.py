from __future__ import annotations

import numpy as np
import pytest

from agents.bootstrap import Speeds, ratio_interval


def test_value_is_the_ratio_of_totals() -> None:
    interval = ratio_interval(Speeds([10, 30], [1.0, 3.0]), Speeds([10, 30], [4.0, 4.0]))
    assert interval.value == pytest.approx(10.0 / 5.0)
    assert interval.low <= interval.value <= interval.high


def test_a_constant_ratio_has_no_width_however_the_streams_differ() -> None:
    """Pairing: streams differ a hundredfold, both sides alike."""
    seconds = np.geomspace(0.1, 10.0, 12)
    interval = ratio_interval(Speeds([50] * 12, seconds.tolist()), Speeds([50] * 12, (seconds * 1.5).tolist()))
    assert interval == pytest.approx((1.5, 1.5, 1.5))


def test_it_is_seeded() -> None:
    tokens, seconds = [10.0] * 20, np.random.default_rng(0).uniform(1, 3, 20).tolist()
    over, under = Speeds(tokens, seconds), Speeds(tokens, seconds[::-1])
    assert ratio_interval(over, under, seed=3) == ratio_interval(over, under, seed=3)
    assert ratio_interval(over, under, seed=3) != ratio_interval(over, under, seed=4)


def test_one_stream_is_a_point() -> None:
    assert ratio_interval(Speeds([10], [1.0]), Speeds([10], [2.0])) == (2.0, 2.0, 2.0)


def test_coverage_on_known_data() -> None:
    """True ratio 1.25; the percentile interval of 30 streams covers it in about 95 of 100 worlds."""
    rng = np.random.default_rng(0)
    worlds, covered = 300, 0
    for _ in range(worlds):
        plain_s = rng.lognormal(0.0, 0.5, 30)
        own_s = plain_s / 1.25 * (1.0 + rng.normal(0.0, 0.2, 30).clip(-0.6, 0.6))
        tokens = [100.0] * 30
        interval = ratio_interval(Speeds(tokens, own_s.tolist()), Speeds(tokens, plain_s.tolist()), resamples=400)
        covered += interval.low <= 1.25 <= interval.high
    assert 0.88 <= covered / worlds <= 0.99


def test_it_refuses_unlike_sides() -> None:
    with pytest.raises(ValueError, match="as many of one as of the other"):
        ratio_interval(Speeds([1, 1], [1.0, 1.0]), Speeds([1], [1.0]))


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (Speeds([], []), "at least one stream"),
        (Speeds([0], [1.0]), "expected positive tokens and seconds"),
        (Speeds([1], [0.0]), "expected positive tokens and seconds"),
    ],
)
def test_it_refuses_what_has_no_ratio(over: Speeds, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ratio_interval(over, over)
