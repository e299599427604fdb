"""What the machine has left, as Linux tells it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runtime.server.free_memory import available_bytes, shares_memory

KB = 1024


def machine(root: Path, available_kb: int = 1000, group: str = "0::/a/b\n") -> tuple[Path, Path]:
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal:  9000 kB\nMemFree:   5 kB\nMemAvailable:   {available_kb} kB\n")
    (proc / "self/cgroup").write_text(group)
    (cgroups / "a/b").mkdir(parents=True)
    return proc, cgroups


def limit(folder: Path, most: str, used: int, cached: int = 0) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\nactive_file 9\n")


def test_the_systems_estimate(tmp_path: Path) -> None:
    assert available_bytes(*machine(tmp_path)) == 1000 * KB


def test_the_tightest_group_counts_and_its_file_cache_does_not(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path)
    limit(cgroups / "a/b", "max", 10**9)
    limit(cgroups / "a", str(500 * KB), 400 * KB, 30 * KB)
    assert available_bytes(proc, cgroups) == 130 * KB
    limit(cgroups / "a/b", str(100 * KB), 90 * KB)
    assert available_bytes(proc, cgroups) == 10 * KB
    limit(cgroups / "a/b", str(100 * KB), 200 * KB)  # over its limit, about to be reclaimed
    assert available_bytes(proc, cgroups) == 0


@pytest.mark.parametrize("group", ["4:memory:/a/b\n", "0::/\n", "0::/../../a\n", ""])
def test_other_groups_do_not_count(tmp_path: Path, group: str) -> None:
    proc, cgroups = machine(tmp_path, group=group)
    limit(cgroups / "a/b", "5", 0)
    assert available_bytes(proc, cgroups) == 1000 * KB


def test_where_nothing_is_told(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\n")
    assert available_bytes(tmp_path, tmp_path) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, which is Linux's")
def test_of_this_machine() -> None:
    available = available_bytes()
    assert available is not None and available > 1 << 20


def test_only_memory_that_is_the_machines_own_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares_memory(torch.device("cpu")) and not shares_memory(torch.device("mps"))
    for integrated in (True, False):
        facts = SimpleNamespace(is_integrated=integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, facts=facts: facts)
        assert shares_memory(torch.device("cuda:0")) is integrated
