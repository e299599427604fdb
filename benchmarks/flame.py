"""Where wall time goes, as a picture: the Python stack of the main thread, sampled by a timer, drawn as an SVG.

A signal's handler runs between two byte codes, so a long call into a library (a matrix product) is seen when it
returns, with the stack that called it: one sample for it, whatever its length. The time since the last sample is
therefore what counts, not the number of samples.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from types import FrameType

Stack = tuple[str, ...]

WIDTH, ROW, LETTER = 1200.0, 18, 6.6
"""Of the picture, of a level, of a letter, in pixels."""
SMALLEST = 0.004
"""Frames of a smaller share are left out."""
WRAPPERS = frozenset(
    {"module", "deprecation", "generic", "output_capturing", "_contextlib", "modeling_layers", "flame"}
)
"""Files whose frames only pass a call on; what they take is their caller's."""
COLOURS = {"forward": "#c7d8ee", "own": "#f2b880", "other": "#e6e6e6"}
"""By where a frame's code lies: in the models, in this project, elsewhere."""


@contextmanager
def sampled(interval_s: float = 0.002) -> Iterator[Counter[Stack]]:
    """Nanoseconds by stack (outermost first) of what runs inside; only in the main thread, not on Windows."""
    found: Counter[Stack] = Counter()
    last_ns = time.perf_counter_ns()

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal last_ns
        now_ns = time.perf_counter_ns()
        found[_stack(frame)] += now_ns - last_ns
        last_ns = time.perf_counter_ns()  # what looking takes is nobody's

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, interval_s, interval_s)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _stack(frame: FrameType | None) -> Stack:
    names: list[str] = []
    while frame is not None:
        file = frame.f_code.co_filename.rpartition("/")[2].removesuffix(".py")
        if file not in WRAPPERS:
            names.append(f"{file}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(names))


@dataclass
class Node:
    """A frame with all that it called: nanoseconds in total, and by the frames below it."""

    total: int = 0
    below: dict[str, Node] = field(default_factory=dict)


def tree(stacks: Counter[Stack], root: str) -> Node:
    """The stacks merged from the outermost frame called ``root`` on; stacks without it are left out."""
    top = Node()
    for stack, spent in stacks.items():
        if root not in stack:
            continue
        node = top
        node.total += spent
        for name in stack[stack.index(root) :]:
            node = node.below.setdefault(name, Node())
            node.total += spent
    return top


def draw(top: Node, path: Path, title: str, levels: int = 24) -> None:
    """Write the picture: one box a frame, as wide as its share, what it called beneath it."""
    boxes: list[str] = []
    deepest = _boxes(top, 0.0, 0, max(top.total, 1), levels, boxes)
    height = (deepest + 2) * ROW + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" font-family="monospace" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/><text x="4" y="13">{escape(title)}</text>'
    )
    path.write_text("\n".join([head, *boxes, "</svg>"]) + "\n", encoding="utf-8")


def _boxes(node: Node, left: float, level: int, whole: int, levels: int, boxes: list[str]) -> int:
    """Draw what lies beneath a node from ``left`` on; returns the deepest level drawn."""
    deepest = level
    for name, child in sorted(node.below.items(), key=lambda item: -item[1].total):
        share = child.total / whole
        if share < SMALLEST or level >= levels:
            continue
        width, top = WIDTH * share, (level + 1) * ROW + 4
        label = escape(name if len(name) * LETTER < width else name[: max(0, int(width / LETTER) - 1)])
        boxes.append(
            f'<g><title>{escape(name)}, {100 * share:.1f}%</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{ROW - 1}" fill="{_colour(name)}" stroke="white"/><text x="{left + 3:.1f}" y="{top + 12}">'
            f"{label}</text></g>"
        )
        deepest = max(deepest, _boxes(child, left, level + 1, whole, levels, boxes))
        left += width
    return deepest


def _colour(name: str) -> str:
    file = name.split(":", 1)[0]
    if file.startswith("modeling_") or file == "functional":
        return COLOURS["forward"]
    return COLOURS["own"] if file in _own_files() else COLOURS["other"]


@cache
def _own_files() -> frozenset[str]:
    return frozenset(path.stem for path in (Path(__file__).parents[1] / "runtime").rglob("*.py"))
