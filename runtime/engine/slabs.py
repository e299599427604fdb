"""Weights side by side in pages of 2 MiB, where the system has such (Linux).

A decoding step reads every weight once. In pages of 4 KiB the processor looks up tens of thousands of them on the way;
measured, one thread, SmolLM2 compressed: a step takes 5 to 7% less in large ones. They are for a model that stays: a
slab goes back to the system when the last tensor in it does.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from runtime.engine.malloc import new_lasting

SLAB_BYTES = 32 << 20
"""Mapped at once; what is not written to takes no memory, up to a page."""
LINE = 64
"""Bytes of a cache line, which every tensor begins with."""

_HERE = threading.local()


class Slabs:
    """Where the next tensor goes."""

    def __init__(self) -> None:
        self._slab: mmap.mmap | None = None
        self._used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor that nothing was written to.

        Raises:
            OSError: If there is no memory.
        """
        count = math.prod(shape)
        size = count * dtype.itemsize
        if self._slab is None or self._used + size > len(self._slab):
            self._slab, self._used = _mapped(max(SLAB_BYTES, size)), 0
        at, self._used = self._used, self._used + -(-size // LINE) * LINE
        return torch.frombuffer(self._slab, dtype=dtype, count=count, offset=at).view(tuple(shape))


@contextmanager
def side_by_side() -> Iterator[None]:
    """What this thread asks ``new_weights`` for within lies in slabs, where there are large pages."""
    before = getattr(_HERE, "slabs", None)
    _HERE.slabs = Slabs() if hasattr(mmap, "MADV_HUGEPAGE") else None
    try:
        yield
    finally:
        _HERE.slabs = before


def new_weights(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor on CPU for weights: in a slab within ``side_by_side``, else as ``new_lasting``."""
    slabs: Slabs | None = getattr(_HERE, "slabs", None)
    if slabs is None or not math.prod(shape):
        return new_lasting(shape, dtype, whole=True)
    try:
        return slabs.take(shape, dtype)
    except OSError:  # too much is mapped: torch will say so
        return new_lasting(shape, dtype, whole=True)


def _mapped(size: int) -> mmap.mmap:
    slab = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        slab.madvise(mmap.MADV_HUGEPAGE)
    return slab
