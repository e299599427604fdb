"""The entry into compiled code: many streams take a step, or begin."""

from __future__ import annotations

from envs.batched.kernel import columns as col
from envs.batched.kernel import loading, phases
from envs.batched.kernel.bundle import Stream, World, stream_of, view_of, world_of
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.observing import fill_vector
from envs.batched.kernel.rules import ADMIT, DECODE, Choice, choose, fill_mask
from envs.batched.kernel.tables import Longs, Seen, Streams, Tables

FINISHED, TRUNCATED = 1, 2


@compiled
def serve(tables: Tables, streams: Streams, seen: Seen, actions: Longs, indices: Longs, fresh: bool) -> None:
    """Carry out a decision in some streams, or begin them anew, then observe.

    Args:
        tables: What all share.
        streams: Their state, changed. Of those that begin, ``WORLD`` and ``plan`` were written.
        seen: Filled for these streams; its masks say what was legal before.
        actions: By stream, shape (N, 5).
        indices: Which streams.
        fresh: They begin.
    """
    for index in indices:
        s, view = stream_of(streams, index), view_of(seen, index)
        world = world_of(tables, s.whole[col.WORLD])
        if fresh:
            phases.begin(tables, world, s)
        else:
            _step(tables, world, s, choose(tables, s, actions[index], view.mask), seen, index)
        loading.poll(world, s)
        fill_mask(tables, world, s, view.mask)
        fill_vector(tables, world, s, view.vector)


@compiled
def _step(tables: Tables, world: World, s: Stream, choice: Choice, seen: Seen, index: int) -> None:
    before_s = s.real[col.NOW]
    plain_s, more = _advance(tables, world, s, choice)
    seconds = s.real[col.NOW] - before_s
    reward = (plain_s - seconds) / world.real[col.PLAIN_S]
    s.real[col.SECONDS] += seconds
    s.real[col.PLAIN_SECONDS] += plain_s
    s.real[col.RETURN] += reward
    s.whole[col.ILLEGAL] += choice.illegal
    s.whole[col.STEPS] += 1
    most = world.whole[col.MAX_STEPS]
    truncated = most > 0 and s.whole[col.STEPS] >= most
    seen.reward[index], seen.illegal[index] = reward, choice.illegal
    seen.ended[index] = FINISHED if not more else TRUNCATED if truncated else 0


@compiled
def _advance(tables: Tables, world: World, s: Stream, choice: Choice) -> tuple[float, bool]:
    """Plain seconds of the step, and whether the stream goes on."""
    if s.whole[col.PHASE] == ADMIT:
        return phases.admit(tables, world, s, choice), True
    if s.whole[col.PHASE] == DECODE:
        return phases.decode(tables, world, s, choice), True
    plain_s = phases.complete(tables, world, s, choice)
    return plain_s, phases.arrive(tables, world, s)
