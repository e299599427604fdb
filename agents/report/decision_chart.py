"""Decision maps as a figure: heat maps side by side, with one colour for each draft length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from agents.decision_map import DecisionMap
from agents.report.drawing import ACCENT, GAMMA_COLOURS, INK, WIDTH_IN, Axes, Box, add_boxes, canvas, styled
from agents.report.rows import POLICY

CAPTION = (
    "How far a controller lets one small model guess, at every share of right guesses (up) and length of the text "
    "(right). The darker, the further; grey: no guess at all, the large model writes alone."
)


def decision_maps(maps: Sequence[DecisionMap]) -> Figure:
    """Heat maps of one or more controllers, acceptance upwards and context to the right."""
    with styled():
        figure = canvas(4.1, max(5.0, WIDTH_IN * len(maps) / 2))
        panels = figure.subplots(1, len(maps), sharey=True, squeeze=False)[0]
        for axes, one in zip(panels, maps, strict=True):
            _heat(axes, one)
        panels[0].set_ylabel("acceptance: share of right guesses")
        keys = [
            Patch(color=GAMMA_COLOURS[gamma], label=str(gamma) if gamma else "plain (0)") for gamma in GAMMA_COLOURS
        ]
        figure.legend(
            handles=keys, title="gamma: most guesses of a round", ncols=len(keys), loc="outside lower center",
            frameon=False, handlelength=1.2,
        )  # fmt: skip
    return figure


def _heat(axes: Axes, one: DecisionMap) -> None:
    for gamma, boxes in cells(one).items():
        add_boxes(axes, boxes, f"gamma_{gamma}", color=GAMMA_COLOURS[gamma])
    rows, columns = _edges(one.acceptances), _edges(one.contexts)
    axes.set(xlim=(columns[0], columns[-1]), ylim=(rows[0], rows[-1]), xlabel="context, tokens")
    axes.set_xticks([one.contexts[0], *range(256, one.contexts[-1] + 1, 256)])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(one.controller, color=ACCENT if one.controller == POLICY else INK)


def cells(one: DecisionMap) -> Mapping[int, list[Box]]:
    """Rectangles by gamma, neighbours of a row that chose alike joined; together they fill the grid."""
    rows, columns = _edges(one.acceptances), _edges(one.contexts)
    found: dict[int, list[Box]] = {}
    for index, row in enumerate(one.gammas):
        for gamma, run in groupby(range(len(row)), key=row.__getitem__):
            places = list(run)
            box = Box(columns[places[0]], columns[places[-1] + 1], rows[index], rows[index + 1])
            found.setdefault(gamma, []).append(box)
    return found


def _edges(centres: Sequence[float]) -> list[float]:
    """Borders between neighbouring values, and as far beyond the first and the last."""
    middle = np.asarray(centres, dtype=np.float64)
    if len(middle) == 1:
        return [middle[0] - 0.5, middle[0] + 0.5]
    between = (middle[1:] + middle[:-1]) / 2.0
    return [float(v) for v in (2.0 * middle[0] - between[0], *between, 2.0 * middle[-1] - between[-1])]
