"""How much memory the machine still has to give to this process; a container's limit counts, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def shares_memory(device: torch.device) -> bool:
    """Whether a device's memory is the machine's: a CPU, or a GPU that has none of its own."""
    if device.type != "cuda":
        return device.type == "cpu"
    return bool(torch.cuda.get_device_properties(device).is_integrated)


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Bytes that can be taken without swapping: the system's estimate, or what a control group (v2) leaves.

    Memory that only caches files counts as available, in both. Takes some tens of microseconds.

    Args:
        proc: Where Linux tells of processes.
        cgroups: Where control groups are.

    Returns:
        None where the system does not tell.
    """
    try:
        facts = _numbers(proc / "meminfo")
    except OSError:
        return None
    system = facts.get("MemAvailable")
    if system is None:
        return None
    return max(0, min((system * 1024, *_left_by_groups(proc, cgroups))))


def _left_by_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """What the group of this process, and every group around it, leaves of its limit."""
    try:
        lines = (proc / "self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    named = [line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")]
    if not named:  # control groups v1, or none
        return
    group = cgroups / named[0] if ".." not in named[0] else cgroups
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # the outermost group has no limit, and others may set none
            limit = int((folder / "memory.max").read_text(encoding="ascii"))
            used = int((folder / "memory.current").read_text(encoding="ascii"))
            yield limit - used + _numbers(folder / "memory.stat").get("inactive_file", 0)
        if folder == cgroups:
            return


def _numbers(path: Path) -> dict[str, int]:
    """A file of lines that begin with a name and a number."""
    parts = (line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines())
    return {part[0].rstrip(":"): int(part[1]) for part in parts if len(part) > 1 and part[1].isdecimal()}
