"""One job, carried out on the node where Ray put it: a process of its own, its log and its status in its folder."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from agents.cluster.status import DONE, FAILED, QUEUED, RUNNING, Status, known_status
from agents.paths import PROJECT
from runtime.errors import UserError
from runtime.files import read_json

LOG = "job.log"
LOG_LINES = 40
"""Lines of the log that a failed job's status repeats."""
POLL_S = 0.5
"""Seconds between two looks at a job's process."""
REPORT = Path("evaluation") / "report.json"
REPORT_SCHEMA = 1
CHECKPOINTS = Path("checkpoints")


class KilledError(Exception):
    """A job's process was killed from outside, for want of memory for example: worth another attempt."""


@dataclass(frozen=True)
class Job:
    """Work for one process.

    Attributes:
        name: What it is called in the table.
        folder: Its own folder, absolute, on a disk that all nodes share.
        arguments: What follows the interpreter: ``("train.py", "seed=1")`` or ``("-m", "agents.evaluate", ...)``.
        onward: The same for going on where the folder's last checkpoint stands; empty = it starts again from nothing.
        cwd: Working directory, absolute.
        cpus: Cores it may use, and claims.
        live: Whether it runs the real models on the wall clock: then it claims the node's device.
    """

    name: str
    folder: Path
    arguments: tuple[str, ...]
    onward: tuple[str, ...] = ()
    cwd: Path = PROJECT
    cpus: int = 1
    live: bool = False

    @property
    def command(self) -> str:
        """What can be typed to run it alone."""
        return f"python {shlex.join(self.arguments)}"

    @property
    def queued(self) -> Status:
        """Its status before it begins."""
        return Status(self.name, QUEUED, self.command)


def carry_out(job: Job, node: str, watch: Callable[[], None] = lambda: None) -> Status:
    """Run a job to its end, and keep ``status.json`` in its folder up to date.

    Args:
        job: The job. If its folder says that it is running, this is a retry. It goes on from a checkpoint if its folder
            has one.
        node: Where this is, for the status.
        watch: Called about twice a second while the job runs, and once when its process has ended.

    Returns:
        The status: done or failed.

    Raises:
        KilledError: If the job's process was killed; its status still says that it runs.
    """
    before = known_status(job.folder) or job.queued
    again = before.state == RUNNING
    started = before.started if again else datetime.now(UTC).isoformat(timespec="seconds")
    status = replace(job.queued, state=RUNNING, node=node, started=started, retries=before.retries + 1 if again else 0)
    status.save(job.folder)
    onward = job.onward and has_checkpoint(job.folder)
    with running(job, job.onward if onward else job.arguments) as process:
        while process.poll() is None:
            time.sleep(POLL_S)
            watch()
    watch()
    code = process.returncode
    if code < 0:
        error = f"killed by {signal.Signals(-code).name} on {node}"
        replace(status, error=error, seconds=seconds_since(started)).save(job.folder)
        raise KilledError(error)
    status = replace(
        status, state=FAILED if code else DONE, seconds=seconds_since(started), speedup=speedup(job.folder)
    )
    if code:
        head = f"exit status {code} on {node}; the end of {job.folder / LOG}:"
        status = replace(status, error=f"{head}\n{log_tail(job.folder / LOG)}")
    status.save(job.folder)
    return status


@contextmanager
def running(job: Job, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A job's process, which does not outlive this block or this process; what it prints goes to its ``job.log``."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.cpus)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "agents.cluster.guard", *arguments]
    with (job.folder / LOG).open("ab") as log:
        log.write(f"$ python {shlex.join(arguments)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command,
            cwd=job.cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdin is not None, "asked for a pipe"
        process.stdin.close()


def has_checkpoint(folder: Path) -> bool:
    """Whether a run folder has a checkpoint to go on from."""
    return any(path.stem.isdecimal() for path in (folder / CHECKPOINTS).glob("*.safetensors"))


def speedup(folder: Path) -> float | None:
    """The policy's speed-up in the report of a run folder; None if there is no report or no policy in it."""
    try:
        rows = read_json(folder / REPORT, "report", REPORT_SCHEMA)["rows"]
    except UserError:
        return None
    return next((float(row["speedup_vs_plain"]) for row in rows if row["controller"] == "policy"), None)


def log_tail(path: Path) -> str:
    """The last lines of a log, without what progress bars have overwritten."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = [line.rsplit("\r", 1)[-1] for line in text.splitlines(keepends=False)]
    return "\n".join(lines[-LOG_LINES:])


def seconds_since(started: str) -> float:
    """Wall time since a moment in ISO 8601; 0 for none."""
    if not started:
        return 0.0
    return round((datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds(), 1)
