"""What all figures share: colours that colour-blind people can tell apart, style, shapes, and the way to SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import PathPatch
from matplotlib.path import Path

Axes: TypeAlias = Any  # matplotlib carries no types

ACCENT, QUIET, BOUND, INK, GRID, PALE = "#d9480f", "#5c7cfa", "#adb5bd", "#343a40", "#e9ecef", "#dbe4ff"
"""The policy; other controllers; bounds, and plain decoding; text; lines; areas behind marks."""
GAMMA_COLOURS: Mapping[int, str] = {0: BOUND, 1: "#a1dab4", 2: "#41b6c4", 4: "#2c7fb8", 8: "#253494"}
"""Draft lengths, 0 = plain. Source: ColorBrewer YlGnBu, light to dark, so that it survives grey printing."""
SERIES_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#495057", "#f0e442")
"""Things without an order. Source: Okabe and Ito 2008; grey for vermilion, which is near the policy's colour."""
WIDTH_IN = 8.6
PANEL_GAP = 0.04
"""Between panels one below the other, as a share of a panel."""
LEAST_PX_PER_IN = 65
"""A figure on a narrow screen gets no smaller than this: it scrolls."""
STYLE: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.hashsalt": "specpilot",
}


class Box(NamedTuple):
    """A rectangle in data coordinates."""

    left: float
    right: float
    bottom: float
    top: float


def styled() -> Any:
    """The context in which figures are drawn and saved."""
    return rc_context(STYLE)


def canvas(height_in: float, width_in: float = WIDTH_IN) -> Figure:
    """An empty figure."""
    return Figure(figsize=(width_in, height_in), layout=ConstrainedLayoutEngine(hspace=PANEL_GAP))


def bare(axes: Axes, grid: str = "x") -> Axes:
    """Axes without a frame, with quiet lines along one direction (``x``, ``y``, or ``both``)."""
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return axes


def add_boxes(axes: Axes, boxes: Sequence[Box], name: str, **style: Any) -> None:
    """Draw rectangles of one look as one shape, which keeps an SVG small; ``name`` is the shape's id (gid)."""
    if not boxes:
        return
    corners = np.array([[(b.left, b.bottom), (b.right, b.bottom), (b.right, b.top), (b.left, b.top)] for b in boxes])
    closed = np.concatenate([corners, corners[:, :1]], axis=1).reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    axes.add_patch(PathPatch(Path(closed, codes), gid=name, **{"linewidth": 0.0, **style}))


def name_rows(axes: Axes, places: Sequence[float], names: Sequence[str], accent: Sequence[bool]) -> None:
    """Names beside horizontal bars at these heights; those of ``accent`` stand out."""
    axes.set_yticks(places, names)
    for stands_out, text in zip(accent, axes.get_yticklabels(), strict=True):
        if stands_out:
            text.set_color(ACCENT)
            text.set_fontweight("bold")


def to_svg(figure: Figure, meaning: str) -> str:
    """A figure as an SVG element, the same for the same figure; ``meaning`` is what a screen reader says."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with styled():
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    looks = f'style="min-width: {round(LEAST_PX_PER_IN * figure.get_figwidth())}px"'
    return f'<svg role="img" aria-label="{escape(meaning)}" {looks}' + svg[svg.index("<svg") + len("<svg") :]


def save_png(figure: Figure, file: Any, dpi: int = 160) -> None:
    """Write a figure as a PNG file on white."""
    with styled():
        figure.savefig(file, format="png", dpi=dpi, facecolor="white")
