"""Jobs on a cluster: all are submitted, each keeps its own status, none can sink the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agents.cluster.ray_cluster import DEVICE, connected, device_cpus, this_node
from agents.cluster.status import DONE, FAILED, Status, known_status, last_line
from agents.cluster.work import Job, KilledError, carry_out, has_checkpoint, seconds_since
from runtime.errors import UserError


def run_jobs(jobs: Sequence[Job], address: str | None = None, max_retries: int = 3) -> list[Status]:
    """Run jobs on a Ray cluster.

    A job whose folder says that the same command is done already is not run again. A job that fails is not tried again:
    it would fail again. A job whose node or process was killed is, from its last checkpoint.

    Args:
        jobs: The jobs, each with a folder of its own.
        address: Of the cluster; see ``connected``.
        max_retries: Attempts after the first one, of jobs that were killed.

    Returns:
        What became of every job, in their order: done or failed.

    Raises:
        UserError: If there is no such cluster, no node for live jobs, or a folder holds another job.
    """
    found: dict[int, Status] = {}
    waiting: dict[int, Job] = {}
    for index, job in enumerate(jobs):
        before = known_status(job.folder)
        if (before is None and has_checkpoint(job.folder)) or (before is not None and before.command != job.command):
            raise UserError(
                f"{job.folder}: expected an empty folder or the same job again, found a run of another command than "
                f"`{job.command}`: choose another folder"
            )
        if before is not None and before.state == DONE:
            found[index] = before
        else:
            waiting[index] = job
    if waiting:
        with connected(address) as ray:
            _run(ray, waiting, found, max_retries)
    return [found[index] for index in range(len(jobs))]


def _run(ray: Any, jobs: dict[int, Job], found: dict[int, Status], max_retries: int) -> None:
    cpus = device_cpus(ray) if any(job.live for job in jobs.values()) else 1
    for job in jobs.values():
        job.folder.mkdir(parents=True, exist_ok=True)
        job.queued.save(job.folder)
    pending = {}
    for index, job in jobs.items():
        options = {"num_cpus": job.cpus, "max_retries": max_retries, "retry_exceptions": [KilledError]}
        if job.live:
            job = replace(job, cpus=cpus)
            options |= {"num_cpus": cpus, "resources": {DEVICE: 1}}
        pending[ray.remote(**options)(_task).remote(job)] = index
    total = len(found) + len(jobs)
    try:
        while pending:
            (ready, *_), _rest = ray.wait(list(pending), num_returns=1)
            index = pending.pop(ready)
            found[index] = _outcome(ray, ready, jobs[index])
            print(f"{len(found)}/{total} {_line(found[index])}", flush=True)
    except BaseException:
        for index in pending.values():
            _give_up(jobs[index], "stopped: the program that started the jobs was interrupted")
        raise


def _task(job: Job) -> Status:
    import ray

    return carry_out(job, this_node(ray))


def _outcome(ray: Any, done: Any, job: Job) -> Status:
    """The status that a task returned; if it ended without one, one that says why."""
    try:
        status: Status = ray.get(done)
        return status
    except (ray.exceptions.RayError, KilledError) as error:
        return _give_up(job, str(error))


def _give_up(job: Job, error: str) -> Status:
    before = known_status(job.folder) or job.queued
    status = replace(
        before,
        state=FAILED,
        error="\n".join(filter(None, (before.error, error))),
        seconds=seconds_since(before.started),
    )
    status.save(job.folder)
    return status


def _line(status: Status) -> str:
    """What became of a job, in one line."""
    speedup = "" if status.speedup is None else f", {status.speedup:.3f}x plain"
    why = f": {last_line(status.error)}" if status.state == FAILED else ""
    return f"{status.state}: {status.name} in {status.seconds:.0f} s{speedup}{why}"
