"""How many CPU threads to use when nobody says."""

from __future__ import annotations

import os


def usable_threads() -> int:
    """``OMP_NUM_THREADS`` if it is set, else the cores that this process may run on."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else usable_cores()


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
