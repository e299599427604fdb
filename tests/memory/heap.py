"""What a child process does with its memory while its parent reads it. Imports little, so that it starts soon."""

from __future__ import annotations

import torch

from benchmarks.watching import Mark
from runtime.engine.kv_state import KVState
from runtime.engine.malloc import MAPPED_BYTES, new_lasting, release_free_memory, returned_when_freed
from runtime.server.freeing import PAUSE_S, Freeing

MIB = 1 << 20
HELD, SIZE = 24, MIB
"""So many tensors of so many bytes are held at a time."""
HOLE_BYTES = MAPPED_BYTES // 2
"""So small that it lies in the allocator's heap."""


def come_and_go(mark: Mark) -> None:
    """Tensors that stay for long are made and dropped, but for a view of one, where the heap has a hole for all."""
    torch.set_num_threads(1)
    with returned_when_freed():  # as when a draft was loaded; sets the usual limits behind it
        pass
    made = [torch.ones(SIZE // 4) for _ in range(2 * HELD)]
    behind = made.pop()
    del made
    release_free_memory()
    for make in (_tensor, _kv):
        held = [make() for _ in range(HELD)]
        mark("held", behind=behind.numel())
        part = held[0][:1]
        del held
        mark("a view is left")
        assert part.sum() >= 0
        del part
        mark("gone")


def _tensor() -> torch.Tensor:
    return new_lasting((SIZE // 4,), torch.float32).fill_(1.0)


def _kv() -> torch.Tensor:
    keys = torch.ones(1, 1, SIZE // 64, 8)
    return KVState.copy_of([(keys, keys)]).buffer


def make_holes(mark: Mark) -> None:
    torch.set_num_threads(1)
    blocks = [torch.ones(HOLE_BYTES // 4) for _ in range(40 * MIB // HOLE_BYTES)]
    mark("full")
    del blocks[::2]
    mark("holes")
    Freeing(clock=iter((0.0, PAUSE_S, PAUSE_S)).__next__).check()
    mark("nothing computed")
    one = Freeing(clock=iter((0.0, PAUSE_S, PAUSE_S)).__next__)
    one.note_work()
    one.check()
    mark("given back", left=len(blocks))
