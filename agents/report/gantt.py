"""One stream as a Gantt chart: which drafts are in memory, which guess how far and how well, how much KV is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from agents.report.drawing import ACCENT, GAMMA_COLOURS, GRID, INK, PALE, Axes, Box, add_boxes, bare, canvas, styled
from agents.report.rows import POLICY
from agents.report.spans import kv_levels, loading_spans, request_starts_s, resident_spans
from agents.timeline import Step, Timeline
from runtime.core import GAMMAS, Phase

CAPTION = (
    "One stream of requests, from left to right. Pale: the small model is in memory; hatched: it is being loaded. A "
    "coloured mark is a round in which it guessed: the darker, the more guesses were allowed; the taller, the more "
    "were right. Grey marks in the top lane are rounds of the large model alone. Upright lines: a new request begins."
)
STALL, PREFILL, KV = "#c92a2a", "#868e96", "#b197fc"
LANE = 0.84
"""Height of a lane; 1 = lanes touch."""
WIDTH_IN, LANE_IN, HEAD_IN, LEGEND_IN = 11.0, 0.3, 0.65, 0.9
LABEL_ROWS, LETTER_SHARE = 2, 0.0065
"""Rows of request labels, and the width of a letter as a share of the axis; a label without room is left out."""
LOWEST = 0.2
"""Height of a mark without a right guess, as a share of the lane's."""


def gantt(timelines: Sequence[Timeline], topics: Sequence[str] = ()) -> Figure:
    """Timelines of one stream under one or more controllers, one below the other on one axis of time.

    Args:
        timelines: At least one, with steps.
        topics: What each request is about, e.g. its domain; none = requests are numbered.

    Raises:
        ValueError: If there is no timeline, or one without steps.
    """
    if not timelines or not all(timeline.steps for timeline in timelines):
        raise ValueError("gantt: expected timelines with steps, got none")
    lanes = len(timelines[0].drafts) + 2
    most_kv = max(step.kv_bytes for timeline in timelines for step in timeline.steps)
    longest_s = max(timeline.seconds for timeline in timelines)
    with styled():
        figure = canvas(LEGEND_IN + len(timelines) * (HEAD_IN + LANE_IN * lanes), WIDTH_IN)
        panels = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
        for axes, timeline in zip(panels, timelines, strict=True):
            _panel(axes, timeline, topics, most_kv, longest_s)
        panels[-1].set_xlabel("time, seconds")
        figure.legend(handles=_keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, timeline: Timeline, topics: Sequence[str], most_kv: int, longest_s: float) -> None:
    bare(axes)
    names = ["large model alone", *timeline.drafts, f"stored KV (≤ {most_kv / 1e6:.0f} MB)"]
    floors = [len(names) - 1.0 - lane for lane in range(len(names))]
    axes.set_yticks([floor + LANE / 2.0 for floor in floors], names)
    axes.set_ylim(-0.1, len(names))
    who = f"{timeline.controller}: done after {timeline.seconds:.1f} s"
    axes.set_title(who, color=ACCENT if timeline.controller == POLICY else INK, pad=26)
    for draft, floor in enumerate(floors[1:-1]):
        _residency(axes, timeline, draft, floor)
    _marks(axes, timeline, floors)
    _kv(axes, timeline, most_kv)
    axes.set_xlim(0.0, longest_s * 1.002)
    _requests(axes, timeline, topics, longest_s)


def _residency(axes: Axes, timeline: Timeline, draft: int, floor: float) -> None:
    top = floor + LANE
    held = [Box(*span, floor, top) for span in resident_spans(timeline, draft)]
    coming = [Box(*span, floor, top) for span in loading_spans(timeline, draft)]
    add_boxes(axes, held, f"resident_{draft}", facecolor=PALE)
    add_boxes(axes, coming, f"loading_{draft}", facecolor="white", edgecolor="#748ffc", hatch="//////", linewidth=0.6)


def _marks(axes: Axes, timeline: Timeline, floors: Sequence[float]) -> None:
    """Rounds by gamma, prefills and stalls: one shape each, over all lanes."""
    kinds: dict[str, list[Box]] = {}
    for step in timeline.steps:
        for kind, box in _boxes(step, floors):
            kinds.setdefault(kind, []).append(box)
    colours = {"stall": STALL, "prefill": PREFILL, **{f"gamma_{g}": GAMMA_COLOURS[g] for g in (0, *GAMMAS)}}
    for kind, boxes in kinds.items():
        add_boxes(axes, boxes, kind, facecolor=colours[kind])


def _boxes(step: Step, floors: Sequence[float]) -> Iterator[tuple[str, Box]]:
    """What a step looks like; the wait for a load comes first in it."""
    floor = floors[0] if step.draft is None else floors[1 + step.draft]
    began_s = step.start_s + step.stall_s
    if step.stall_s > 0.0:
        yield "stall", Box(step.start_s, began_s, floor, floor + LANE)
    if step.phase is Phase.ADMIT:
        yield "prefill", Box(began_s, step.end_s, floor, floor + LANE)
    elif step.phase is Phase.DECODE and step.draft is None:
        yield "gamma_0", Box(began_s, step.end_s, floor, floor + LANE * LOWEST)
    elif step.phase is Phase.DECODE:
        yield f"gamma_{step.gamma}", Box(began_s, step.end_s, floor, floor + LANE * height(step.accepted))


def height(accepted: int) -> float:
    """Height of a mark as a share of its lane's: every doubling of the committed tokens adds as much."""
    return LOWEST + (1.0 - LOWEST) * math.log2(1 + accepted) / math.log2(1 + max(GAMMAS))


def _kv(axes: Axes, timeline: Timeline, most_kv: int) -> None:
    levels = kv_levels(timeline)
    heights = [LANE * level.kv_bytes / max(most_kv, 1) for level in levels]
    shown = axes.fill_between([level.start_s for level in levels], heights, step="post", color=KV, linewidth=0.0)
    shown.set_gid("kv")


def _requests(axes: Axes, timeline: Timeline, topics: Sequence[str], width_s: float) -> None:
    starts, (bottom, top) = request_starts_s(timeline), axes.get_ylim()
    axes.vlines(starts, bottom, top, color=INK, linewidth=0.6, alpha=0.55)
    axes.vlines([timeline.seconds], bottom, top, color=INK, linewidth=1.4)
    names = topics or [str(1 + index) for index in range(len(starts))]
    ends = [0.0] * LABEL_ROWS
    for start_s, name in zip(starts, names, strict=True):
        row = next((row for row, end_s in enumerate(ends) if start_s >= end_s), None)
        if row is not None:
            ends[row] = start_s + (1 + len(name)) * LETTER_SHARE * width_s
            axes.annotate(name, (start_s, top), xytext=(1, 2 + 10 * row), textcoords="offset points", fontsize=8)


def _keys() -> list[Patch]:
    rounds = [Patch(facecolor=GAMMA_COLOURS[g], label=f"up to {g} guess{'es' * (g > 1)}") for g in GAMMAS]
    return [
        Patch(facecolor=PALE, label="in memory"),
        Patch(facecolor="white", edgecolor="#748ffc", hatch="//////", label="loading"),
        *rounds,
        Patch(facecolor=GAMMA_COLOURS[0], label="round without guesses"),
        Patch(facecolor=PREFILL, label="reading the prompt"),
        Patch(facecolor=STALL, label="waiting for a load"),
        Patch(facecolor=KV, edgecolor=GRID, label="stored KV"),
    ]
