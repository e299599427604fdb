"""A Ray cluster of several nodes on this machine, and scripts that stand for long jobs."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.cluster.work import Job
from agents.paths import PROJECT

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def started(cluster: Any, **options: Any) -> Any:
    """One more node of one core."""
    return cluster.add_node(**{**NODE, **options})


TOKEN = secrets.token_hex(32)
"""Of the tests' clusters: nobody else on this machine gets in."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head node without cores, so that any node that works can be killed; add nodes with ``started``."""
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", TOKEN)):
        monkeypatch.setenv(name, value)
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    from ray.cluster_utils import Cluster

    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()  # type: ignore[no-untyped-call]


def scripted(folder: Path, name: str, text: str, **options: Any) -> Job:
    """A job that runs a script, with a folder of its own."""
    script = folder / f"{name}.py"
    script.write_text(text, encoding="utf-8")
    job = folder / name
    job.mkdir()
    return Job(name, job, (str(script), str(job)), cwd=folder, **options)


def program(
    arguments: Sequence[str], address: str, cwd: Path, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of the project's programs against a cluster."""
    environment = {**os.environ, "RAY_ADDRESS": address, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**environment, **(more or {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
