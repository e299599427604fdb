"""The Gantt chart shows what the timeline says, and stays small."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from agents.report.drawing import Box, to_svg
from agents.report.gantt import LANE, LOWEST, gantt, height
from agents.report.spans import Level, Span, kv_levels, loading_spans, request_starts_s, resident_spans
from agents.timeline import Step, Timeline, record_timeline
from runtime.control.memspec import MemSpecController
from runtime.core import Phase
from tests.factories import NAMES, make_world

BASE = Step(
    request=0, phase=Phase.DECODE, position=1, start_s=0.0, end_s=0.0, stall_s=0.0, draft=None, gamma=0, stop=0,
    steps=0, drafted=0, accepted=0, committed=1, catch_up_tokens=0, reused_tokens=0, resident=(), loading=(),
    kv_bytes=0,
)  # fmt: skip


def made_up(controller: str = "policy") -> Timeline:
    """Two requests: prefill, a background load of draft 0, rounds with it, a wait for draft 1, plain rounds."""
    steps = (
        replace(BASE, phase=Phase.ADMIT, start_s=0.0, end_s=1.0),
        replace(BASE, start_s=1.0, end_s=1.5),  # asks for draft 0
        replace(BASE, start_s=1.5, end_s=2.0, loading=(0,)),
        replace(BASE, start_s=2.0, end_s=2.4, draft=0, gamma=4, accepted=4, resident=(0,)),
        replace(BASE, start_s=2.4, end_s=2.8, draft=0, gamma=4, accepted=0, resident=(0,)),
        replace(BASE, phase=Phase.COMPLETE, start_s=2.8, end_s=3.0, resident=(0,)),
        replace(BASE, phase=Phase.ADMIT, request=1, start_s=3.0, end_s=3.5, resident=(0,), kv_bytes=500),
        replace(BASE, request=1, start_s=3.5, end_s=5.0, stall_s=1.0, draft=1, gamma=2, accepted=1, kv_bytes=500),
        replace(BASE, request=1, start_s=5.0, end_s=5.5, resident=(1,), kv_bytes=200),
        replace(BASE, phase=Phase.COMPLETE, request=1, start_s=5.5, end_s=5.6, resident=(1,), kv_bytes=200),
    )
    return Timeline(controller, 0, NAMES, steps)


def boxes(figure: Figure, name: str, panel: int = 0) -> list[Box]:
    """The rectangles of one shape, read back from the drawing."""
    found: list[Box] = []
    for patch in figure.axes[panel].patches:
        if isinstance(patch, PathPatch) and patch.get_gid() == name:
            for corners in np.asarray(patch.get_path().vertices).reshape(-1, 5, 2):
                left, bottom = corners.min(axis=0)
                right, top = corners.max(axis=0)
                found.append(Box(*map(float, (left, right, bottom, top))))
    return found


def times(found: list[Box]) -> list[tuple[float, float]]:
    return [(box.left, box.right) for box in found]


def test_bars_are_as_wide_as_drafts_are_resident() -> None:
    figure = gantt([made_up()])
    assert times(boxes(figure, "resident_0")) == [(2.0, 3.5)]
    assert times(boxes(figure, "resident_1")) == [(5.0, 5.6)]
    assert boxes(figure, "resident_2") == []


def test_loads_are_hatched_from_the_step_that_asked() -> None:
    figure = gantt([made_up()])
    assert times(boxes(figure, "loading_0")) == [(1.0, 2.0)]
    assert boxes(figure, "loading_1") == []  # decoding waited for it
    (hatched,) = [patch for patch in figure.axes[0].patches if patch.get_gid() == "loading_0"]
    assert hatched.get_hatch()


def test_rounds_are_marked_in_the_lane_of_their_draft() -> None:
    figure = gantt([made_up()])
    lane_0, lane_1 = boxes(figure, "resident_0")[0], boxes(figure, "resident_1")[0]
    right, wrong = boxes(figure, "gamma_4")
    assert times([right, wrong]) == [(2.0, 2.4), (2.4, 2.8)]
    assert right.bottom == wrong.bottom == lane_0.bottom
    assert right.top - right.bottom == pytest.approx(LANE * height(4))
    assert wrong.top - wrong.bottom == pytest.approx(LANE * LOWEST)
    (waited,) = boxes(figure, "gamma_2")
    assert (waited.left, waited.right, waited.bottom) == (4.5, 5.0, lane_1.bottom)
    assert times(boxes(figure, "stall")) == [(3.5, 4.5)]


def test_plain_rounds_and_prefills_have_the_top_lane() -> None:
    figure = gantt([made_up()])
    plain, prefill = boxes(figure, "gamma_0"), boxes(figure, "prefill")
    assert times(plain) == [(1.0, 1.5), (1.5, 2.0), (5.0, 5.5)]
    assert times(prefill) == [(0.0, 1.0), (3.0, 3.5)]
    assert {box.bottom for box in plain + prefill} == {len(NAMES) + 1.0}
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["large model alone", *NAMES, "stored KV (≤ 0 MB)"]


def test_a_mark_without_a_right_guess_is_low_and_eight_fill_the_lane() -> None:
    heights = [height(accepted) for accepted in range(9)]
    assert heights == sorted(heights) and heights[0] == LOWEST and heights[8] < 1.0 + 1e-9


def test_stored_kv_and_requests() -> None:
    assert kv_levels(made_up()) == [Level(0.0, 0), Level(3.0, 500), Level(5.0, 200), Level(5.6, 200)]
    assert request_starts_s(made_up()) == [0.0, 3.0]
    labels = [text.get_text() for text in gantt([made_up()], ["code", "math"]).axes[0].texts]
    assert labels == ["code", "math"]


def test_controllers_share_one_axis_of_time() -> None:
    figure = gantt([made_up(), made_up("memspec")])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "policy: done after 5.6 s", "memspec: done after 5.6 s",
    ]  # fmt: skip
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


def test_spans_of_a_real_stream_add_up() -> None:
    world = make_world()
    (stream,) = world.streams(0, 1)
    timeline = record_timeline(MemSpecController(3, 2), stream, world.session(), "memspec")
    for draft in range(3):
        steps = timeline.steps
        ends = [after.start_s for _, after in pairwise(steps)] + [timeline.seconds]
        held = sum(end - step.start_s for step, end in zip(steps, ends, strict=True) if draft in step.resident)
        spans = resident_spans(timeline, draft)
        assert sum(span.end_s - span.start_s for span in spans) == pytest.approx(held)
        for load in loading_spans(timeline, draft):
            assert load.start_s < load.end_s and load.end_s in [span.start_s for span in spans]
    assert resident_spans(timeline, 2) == [Span(0.0, timeline.seconds)]
    shown = gantt([timeline])
    marks = sum(len(boxes(shown, f"gamma_{gamma}")) for gamma in (0, 1, 2, 4, 8))
    assert marks == sum(step.phase is Phase.DECODE for step in timeline.steps)


def test_a_long_stream_is_a_small_file() -> None:
    steps = [
        replace(
            BASE, request=index // 60, start_s=index / 7, end_s=(index + 1) / 7, draft=index % 3,
            gamma=(1, 2, 4, 8)[index % 4], accepted=index % 2, resident=(0, 1, 2), kv_bytes=index * 1000,
        )
        for index in range(600)
    ]  # fmt: skip
    svg = to_svg(gantt([Timeline(name, 0, NAMES, tuple(steps)) for name in ("policy", "memspec")]), "a stream")
    assert len(svg) < 300_000


def test_nothing_to_draw_is_refused() -> None:
    for timelines in ([], [Timeline("policy", 0, NAMES, ())]):
        with pytest.raises(ValueError, match="expected timelines with steps, got none"):
            gantt(timelines)
