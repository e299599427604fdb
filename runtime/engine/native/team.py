"""How many threads the kernels use.

A forward is a hundred short parallel sections, and each waits for its slowest thread. Where a load takes one of the
cores that they run on, that thread waits for the core first: a step beside a load then takes several times as long. So
while another thread is at work, the kernels leave it a core. What they compute does not depend on how many compute it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runtime.threads import usable_cores

_LOCK = threading.Lock()
_working = 0
_cores = usable_cores()


@contextmanager
def working_beside() -> Iterator[None]:
    """For a thread that computes beside the kernels."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def size() -> int:
    """Threads for the next call: torch's number, one less where it takes a core that another thread works on."""
    threads = torch.get_num_threads()
    return threads - 1 if _working and threads > 1 and threads >= _cores else threads


def _count(change: int) -> None:
    global _working
    with _LOCK:
        _working += change
