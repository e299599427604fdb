"""Loads on the virtual clock: ``envs.replay.loader.VirtualLoader`` with the clock's time in the stream's row.

A finished load is marked ``FINISHED`` until ``poll`` takes it in.
"""

from __future__ import annotations

from envs.batched.kernel import columns as col
from envs.batched.kernel.bundle import Stream, World
from envs.batched.kernel.compiled import compiled


@compiled
def work(world: World, s: Stream, seconds: float) -> None:
    """Let the decoder do work that takes ``seconds`` alone on the device; longer while a load runs."""
    sync(world, s)
    real, loads, decodes = s.real, world.real[col.LOAD_SLOWDOWN], world.real[col.DECODE_SLOWDOWN]
    while s.whole[col.QUEUED] > 0:
        until_loaded_s = real[col.LEFT] * loads
        needed_s = seconds * decodes
        if needed_s < until_loaded_s:
            real[col.NOW] += needed_s
            real[col.LEFT] -= needed_s / loads
            real[col.SYNCED] = real[col.NOW]
            return
        real[col.NOW] += until_loaded_s
        seconds -= until_loaded_s / decodes
        real[col.SYNCED] = real[col.NOW]
        _end_head(world, s)
    real[col.NOW] += max(seconds, 0.0)
    real[col.SYNCED] = real[col.NOW]


@compiled
def start(world: World, s: Stream, draft: int) -> None:
    """Queue the load of a draft that is neither loading nor resident."""
    sync(world, s)
    queued = s.whole[col.QUEUED]
    s.draft_whole[queued, col.QUEUE] = draft
    s.whole[col.QUEUED] = queued + 1
    if queued == 0:
        s.real[col.LEFT] = world.load[draft, col.LOAD_S]


@compiled
def poll(world: World, s: Stream) -> None:
    """Finished loads become resident drafts."""
    sync(world, s)
    for draft in range(len(world.spec)):
        if s.draft_whole[draft, col.FINISHED]:
            s.draft_whole[draft, col.FINISHED] = 0
            s.draft_whole[draft, col.RESIDENCY] = col.RESIDENT
            s.draft_whole[draft, col.USED] = 0


@compiled
def fraction(world: World, s: Stream, draft: int) -> float:
    """Part of a load that is done, behind ``poll``."""
    sync(world, s)
    if s.draft_whole[draft, col.FINISHED]:
        return 1.0
    if s.whole[col.QUEUED] == 0 or s.draft_whole[0, col.QUEUE] != draft:
        return 0.0
    whole_s = world.load[draft, col.LOAD_S]
    return 1.0 - s.real[col.LEFT] / whole_s if whole_s > 0.0 else 1.0


@compiled
def sync(world: World, s: Stream) -> None:
    """Give loads the time in which nothing else ran."""
    real = s.real
    idle_s = real[col.NOW] - real[col.SYNCED]
    while s.whole[col.QUEUED] > 0 and idle_s >= real[col.LEFT]:
        idle_s -= real[col.LEFT]
        real[col.SYNCED] += real[col.LEFT]
        _end_head(world, s)
    if s.whole[col.QUEUED] > 0:
        real[col.LEFT] -= idle_s
    real[col.SYNCED] = real[col.NOW]


@compiled
def _end_head(world: World, s: Stream) -> None:
    queue = s.draft_whole[:, col.QUEUE]
    s.draft_whole[queue[0], col.FINISHED] = 1
    s.whole[col.QUEUED] -= 1
    for place in range(s.whole[col.QUEUED]):
        queue[place] = queue[place + 1]
    if s.whole[col.QUEUED] > 0:
        s.real[col.LEFT] = world.load[queue[0], col.LOAD_S]
