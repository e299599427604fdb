"""Memory that goes back to the system the moment it is freed, where the C library can be told so (glibc).

glibc serves large blocks by ``mmap`` and returns them when they are freed, but it raises the size that counts as large
to that of any such block that is freed, up to 32 MiB. Soon every tensor lies in an arena, and an evicted draft's memory
stays with the process: measured, 1.6 drafts' worth was held after all were evicted. A low limit for the whole process
would cure that, and cost 30% of a long prefill, whose activations would be mapped anew in every layer. So only what
stays for long is allocated under the low limit.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAPPED_BYTES = 128 << 10
"""Blocks of this size are mapped on their own: glibc's own first limit."""
USUAL_MAPPED_BYTES, USUAL_TRIM_BYTES = 32 << 20, 64 << 20
"""Where glibc's own adaptation of the limits ends."""


@cache
def _glibc() -> Any:
    """The C library, or None where it has no such calls."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def release_free_memory() -> None:
    """Give memory that is freed but still held by the allocator back to the system; some milliseconds."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@contextmanager
def returned_when_freed() -> Iterator[None]:
    """Large blocks allocated within, in any thread, go back to the system the moment they are freed."""
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
