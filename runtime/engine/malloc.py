"""Memory that goes back to the system the moment it is freed, where the C library can be told so (glibc).

glibc serves large blocks by ``mmap`` and returns them when they are freed, but it raises the size that counts as large
to that of any such block that is freed, up to 32 MiB. Soon every tensor lies in an arena, and an evicted draft's memory
stays with the process: measured, 1.6 drafts' worth was held after all were evicted. A low limit for the whole process
would cure that, and cost 30% of a long prefill, whose activations would be mapped anew in every layer. So only what
stays for long is allocated under the low limit.

Even then a block lies in an arena if there is a hole that it fits into, and leaves it open when it is freed; forwards
spread over all holes, and their pages stay with the process: measured, 29 MB more after 85 requests than after 29. So
what is large and comes and goes while a server runs (stored KV, sequences, compressed weights) has memory of its own,
see ``new_lasting``.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAPPED_BYTES = 128 << 10
"""Blocks of this size are mapped on their own: glibc's own first limit."""
POPULATED_BYTES = 4 << 20
"""Pages of larger blocks are not asked for together: CPython 3.11 holds its lock meanwhile, and decoding waits."""
USUAL_MAPPED_BYTES, USUAL_TRIM_BYTES = 32 << 20, 64 << 20
"""Where glibc's own adaptation of the limits ends."""
_PRIVATE: dict[str, int] = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
"""As ``malloc`` maps: of this process alone."""
_WHOLE = {name: flags | getattr(mmap, "MAP_POPULATE", 0) for name, flags in _PRIVATE.items()}


@cache
def _glibc() -> Any:
    """The C library, or None where it has no such calls."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def release_free_memory() -> None:
    """Give pages that are free but still held by the allocator back to the system; some milliseconds."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def new_lasting(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu", whole: bool = False
) -> torch.Tensor:
    """An uninitialised tensor for what stays for long: if large and on CPU, it has memory of its own.

    That goes back to the system the moment the tensor and all its views are gone, and leaves no hole.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        device: Torch device.
        whole: It is written to at once and as a whole: its pages are asked for together (up to ``POPULATED_BYTES``),
            which takes half the time.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < MAPPED_BYTES or torch.device(device).type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    try:
        memory = mmap.mmap(-1, size, **(_WHOLE if whole and size <= POPULATED_BYTES else _PRIVATE))
    except OSError:  # too many are mapped, or there is no memory: torch will say so
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


def lasting(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a tensor in memory as ``new_lasting`` gives it; a small one or one elsewhere as it is."""
    if tensor.numel() * tensor.element_size() < MAPPED_BYTES or tensor.device.type != "cpu":
        return tensor.contiguous()
    return new_lasting(tensor.shape, tensor.dtype, whole=True).copy_(tensor)


@contextmanager
def returned_when_freed() -> Iterator[None]:
    """Large blocks allocated within, in any thread, go back to the system the moment they are freed.

    But for those that fit into a hole that is there already: their pages go back with ``release_free_memory``.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_THRESHOLD, USUAL_MAPPED_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, USUAL_TRIM_BYTES)
