"""A child process works, its parent reads the child's memory from outside."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from runtime.errors import UserError

SAMPLE_S = 0.002

Mark = Callable[..., None]
"""Called in the child with a name and facts; returns when the parent has read the memory."""


class Reading(NamedTuple):
    """Anonymous memory of a child in bytes: at a mark, and the highest since the mark before."""

    name: str
    now: int
    peak: int
    facts: dict[str, Any]


def anonymous_bytes(pid: int) -> int:
    """Anonymous resident memory of a process.

    Raises:
        UserError: If the system does not tell.
    """
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise UserError(f"no RssAnon of process {pid} in /proc: this measurement needs Linux")


def watch(work: Callable[..., None], *arguments: Any) -> list[Reading]:
    """Run ``work(mark, *arguments)`` in a fresh process and read its memory until it ends.

    Raises:
        UserError: If the child refuses its input.
        RuntimeError: If it fails.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, work, arguments), daemon=True)
    child.start()
    theirs.close()
    try:
        return _read(ours, int(child.pid or 0))
    finally:
        child.terminate()
        child.join()


def _read(pipe: Connection, pid: int) -> list[Reading]:
    readings: list[Reading] = []
    peak = 0
    while True:
        if not pipe.poll(SAMPLE_S):
            peak = max(peak, anonymous_bytes(pid))
            continue
        try:
            kind, name, facts = pipe.recv()
        except EOFError:
            raise RuntimeError("the measured process ended early: was it killed for memory?") from None
        if kind == "end":
            return readings
        if kind != "mark":
            raise UserError(name) if kind == "refused" else RuntimeError(name)
        now = anonymous_bytes(pid)
        readings.append(Reading(name, now, max(peak, now), facts))
        peak = 0
        pipe.send("go")


def _child(pipe: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    def mark(name: str, **facts: Any) -> None:
        pipe.send(("mark", name, facts))
        pipe.recv()

    try:
        work(mark, *arguments)
        pipe.send(("end", "", {}))
    except UserError as error:
        pipe.send(("refused", str(error), {}))
    except Exception:
        pipe.send(("failed", traceback.format_exc(), {}))
