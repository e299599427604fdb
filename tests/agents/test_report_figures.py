"""Decision maps, regret and curves: the figures hold what the data says."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer

from agents.decision_map import DecisionMap
from agents.regret import CAUSES, Regret
from agents.report.curves import LineFigure, Series, curves
from agents.report.decision_chart import cells, decision_maps
from agents.report.drawing import ACCENT, GAMMA_COLOURS, SERIES_COLOURS
from agents.report.regret_chart import regret_bars
from agents.report.rows import POLICY

MAP = DecisionMap("policy", 0, (0.0, 0.5, 1.0), (100, 200), ((0, 0), (2, 4), (8, 8)))
REGRETS = (
    Regret("memspec", 15.0, 10.0, {"residency": 2.0, "too_long": 4.0, "kv": -1.0}),
    Regret("policy", 12.0, 10.0, {"residency": 0.5, "too_short": 1.5}),
)


def test_cells_fill_the_grid_with_the_choices() -> None:
    found = cells(MAP)
    assert {gamma: len(boxes) for gamma, boxes in found.items()} == {0: 1, 2: 1, 4: 1, 8: 1}
    assert found[0][0] == (50.0, 250.0, -0.25, 0.25) and found[4][0] == (150.0, 250.0, 0.25, 0.75)
    area = sum((b.right - b.left) * (b.top - b.bottom) for boxes in found.values() for b in boxes)
    assert area == pytest.approx(200.0 * 1.5)


def test_decision_maps_use_the_key_of_lengths() -> None:
    figure = decision_maps([MAP, DecisionMap("rakv_asd", 0, (0.0, 1.0), (100, 200), ((0, 0), (1, 1)))])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["policy", "rakv_asd"]
    first = {str(patch.get_gid()): to_hex(patch.get_facecolor()) for patch in figure.axes[0].patches}
    assert first == {f"gamma_{gamma}": GAMMA_COLOURS[gamma] for gamma in (0, 2, 4, 8)}
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["plain (0)", "1", "2", "4", "8"]


def test_regret_is_stacked_in_percent_of_the_bound() -> None:
    (axes,) = regret_bars(REGRETS).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["memspec", "policy"]  # the least on top
    stacks = {c.get_label(): c for c in axes.containers if isinstance(c, BarContainer)}
    assert list(stacks) == list(CAUSES)
    bars = {cause: [(bar.get_x(), bar.get_width()) for bar in stack] for cause, stack in stacks.items()}
    assert bars["residency"] == [(0.0, 20.0), (0.0, 5.0)]
    assert bars["too_long"][0] == (20.0, 40.0) and bars["too_short"][1] == (5.0, 15.0)
    assert bars["kv"][0] == (0.0, -10.0)  # time gained
    assert [text.get_text() for text in axes.texts] == ["+50%", "+20%"]
    for regret, name in zip(REGRETS, ("memspec", "policy"), strict=True):
        place = 0 if name == "memspec" else 1
        total = sum(width[place][1] for width in bars.values())
        assert total == pytest.approx(100.0 * (regret.seconds / regret.bound_s - 1.0))


def test_every_cause_is_explained_in_a_colour_of_its_own() -> None:
    figure = regret_bars(REGRETS)
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == [f"{cause.replace('_', ' ')}: {meaning}" for cause, meaning in CAUSES.items()]
    colours = {to_hex(patch.get_facecolor()) for patch in figure.legends[0].get_patches()}
    assert len(colours) == len(CAUSES) and ACCENT not in colours


def line(*y: float) -> Series:
    return Series((1, 2, 4), y, [v - 0.1 for v in y], [v + 0.1 for v in y])


def test_curves_go_through_their_points_with_their_bands() -> None:
    shown = LineFigure("Loads", "load, s", "× plain", {"memspec": line(1, 2, 3), POLICY: line(2, 3, 4)}, True, 1.0)
    figure = curves(shown)
    (axes,) = figure.axes
    lines = {str(drawn.get_label()): drawn for drawn in axes.get_lines()}
    for name, series in shown.series.items():
        assert np.asarray(lines[name].get_xydata()).tolist() == [
            [x, y] for x, y in zip(series.x, series.y, strict=True)
        ]
        band = axes.collections[list(shown.series).index(name)].get_paths()[0].get_extents()
        assert (band.ymin, band.ymax) == pytest.approx((series.low[0], series.high[-1]))
    assert lines[POLICY].get_color() == ACCENT and lines["memspec"].get_color() == SERIES_COLOURS[0]
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "load, s", "× plain")
    assert axes.get_title(loc="left") == "Loads"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [POLICY, "memspec"]  # as they end
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]


def test_curves_need_points() -> None:
    with pytest.raises(ValueError, match="figure 'Loads': expected at least one series, got none"):
        curves(LineFigure("Loads", "x", "y", {}))
    with pytest.raises(ValueError, match=r"series 'memspec': expected as many x, y, low and high, got \[3, 2, 2, 2\]"):
        curves(LineFigure("Loads", "x", "y", {"memspec": line(1, 2)}))
