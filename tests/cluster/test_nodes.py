"""Several Ray nodes on this machine: jobs on both, a failing job, a killed node, one device a node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agents.cluster.pool import run_jobs
from agents.cluster.spread import over_the_cluster
from agents.cluster.status import DONE, FAILED, known_status
from agents.cluster.work import Job
from agents.workers import over_all_cores
from runtime.errors import UserError
from tests.cluster.conftest import scripted, started

pytestmark = [
    pytest.mark.slow,
    # Ray's own: files of its processes are closed when Python ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
]

WAIT = "import pathlib, sys, time\nend = time.time() + 60\n"
MEET = (
    WAIT + "folder = pathlib.Path(sys.argv[1])\n(folder / 'here').touch()\n"
    "while len(list(folder.parent.glob('*/here'))) < 2:\n    time.sleep(0.1)\n    assert time.time() < end, 'alone'\n"
)
"""Ends when two jobs are at work at once."""
OUTLIVED = (
    "import pathlib, sys, time\nfolder = pathlib.Path(sys.argv[1])\n"
    "if (folder / 'first').exists(): sys.exit()\n(folder / 'first').touch()\ntime.sleep(600)"
)
"""Hangs at the first attempt."""


def nodes_of(folder: Path) -> str:
    status = known_status(folder)
    return "" if status is None else status.node.partition("/")[2]


def test_jobs_run_on_both_nodes_and_a_failing_one_sinks_nobody(cluster: Any, tmp_path: Path) -> None:
    started(cluster), started(cluster)
    jobs = [
        scripted(tmp_path, "bad", "raise ValueError('no such draft')"),
        scripted(tmp_path, "one", MEET),
        scripted(tmp_path, "two", MEET),
    ]
    bad, one, two = run_jobs(jobs, cluster.address)
    assert (one.state, two.state) == (DONE, DONE)
    assert one.node != two.node
    assert bad.state == FAILED and bad.error.endswith("ValueError: no such draft") and bad.retries == 0
    assert [known_status(job.folder) for job in jobs] == [bad, one, two]


def test_work_of_a_killed_node_is_tried_again(cluster: Any, tmp_path: Path) -> None:
    import ray

    nodes = [started(cluster), started(cluster)]
    job = scripted(tmp_path, "outlived", OUTLIVED)
    killed: list[str] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not (job.folder / "first").exists():
            assert time.monotonic() < deadline, "the job did not begin"
            time.sleep(0.1)
        killed.append(nodes_of(job.folder))
        (victim,) = [node for node in nodes if node.node_id.startswith(killed[0])]
        cluster.remove_node(victim, allow_graceful=False)

    import threading

    ray.init(cluster.address, log_to_driver=False)
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        (status,) = run_jobs([job])
    finally:
        thread.join()
        ray.shutdown()
    assert (status.state, status.retries) == (DONE, 1)
    assert killed and not status.node.endswith(killed[0])


def test_a_job_that_is_always_killed_fails(cluster: Any, tmp_path: Path) -> None:
    started(cluster)
    job = scripted(tmp_path, "killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    (status,) = run_jobs([job], cluster.address, max_retries=1)
    assert (status.state, status.retries) == (FAILED, 1)
    assert "killed by SIGKILL" in status.error


def test_live_jobs_have_a_device_each(cluster: Any, tmp_path: Path) -> None:
    text = (
        "import pathlib, sys, time\nlock = pathlib.Path(sys.argv[1]).parent / 'lock'\nlock.touch(exist_ok=False)\n"
        "time.sleep(1)\nlock.unlink()"
    )
    started(cluster)  # no device: nothing live may run here
    with pytest.raises(UserError, match="live jobs run on nodes with a device, got none"):
        run_jobs([scripted(tmp_path, "nowhere", text, live=True)], cluster.address)
    started(cluster, num_cpus=2, resources={"device": 1})
    jobs = [scripted(tmp_path, name, text, live=True) for name in ("one", "two")]
    one, two = run_jobs(jobs, cluster.address)
    assert (one.state, two.state) == (DONE, DONE), "both were at work at once"
    assert one.node == two.node


def test_work_for_all_cores_is_spread(cluster: Any) -> None:
    started(cluster), started(cluster)
    offset = 10

    def work(item: int) -> int:
        return item * item + offset

    with over_the_cluster(cluster.address):
        found = dict(over_all_cores(work, range(5)))
    assert found == {index: index * index + 10 for index in range(5)}


def test_an_address_without_a_cluster_is_refused(tmp_path: Path, cluster: Any) -> None:
    job = Job("x", tmp_path, ("none.py",))
    with pytest.raises(UserError, match="no Ray cluster at nowhere:1: start one with `ray start --head`"):
        run_jobs([job], "nowhere:1")
