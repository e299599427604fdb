"""One job on its node: what its status says when it is done, fails, is killed or tried again. Without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agents.cluster.pool import run_jobs
from agents.cluster.status import DONE, FAILED, RUNNING, Status
from agents.cluster.work import LOG, Job, KilledError, carry_out, running
from runtime.errors import UserError
from tests.cluster.conftest import scripted


def test_a_job_that_works_is_done(tmp_path: Path) -> None:
    job = scripted(tmp_path, "good", "print('hello', end='')")
    status = carry_out(job, "node")
    assert status == Status.load(job.folder)
    assert (status.state, status.error, status.retries, status.node) == (DONE, "", 0, "node")
    assert status.seconds > 0 and status.started.endswith("+00:00")
    assert (job.folder / LOG).read_text().endswith("\nhello")


def test_a_failing_job_leaves_a_readable_record(tmp_path: Path) -> None:
    job = scripted(tmp_path, "bad", "import sys\nprint('before')\nsys.exit('train.py: no zoo at nowhere')")
    status = carry_out(job, "node")
    assert status.state == FAILED
    assert status.error.startswith("exit status 1 on node")
    assert status.error.endswith("before\ntrain.py: no zoo at nowhere")
    raising = carry_out(scripted(tmp_path, "worse", "raise KeyError('budget')"), "node")
    assert "Traceback" in raising.error and raising.error.endswith("KeyError: 'budget'")


def test_the_report_of_a_run_gives_the_speedup(tmp_path: Path) -> None:
    text = (
        "import json, pathlib, sys\nfolder = pathlib.Path(sys.argv[1]) / 'evaluation'\nfolder.mkdir()\n"
        "rows = [{'controller': 'plain', 'speedup_vs_plain': 1.0}, {'controller': 'policy', 'speedup_vs_plain': 1.5}]\n"
        "(folder / 'report.json').write_text(json.dumps({'schema': 1, 'rows': rows}))"
    )
    assert carry_out(scripted(tmp_path, "run", text), "node").speedup == 1.5


def test_a_killed_job_asks_for_another_attempt(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, signal, sys\nmark = pathlib.Path(sys.argv[1]) / 'been'\n"
        "if mark.exists(): sys.exit()\nmark.touch()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    job = scripted(tmp_path, "killed", text)
    with pytest.raises(KilledError, match="killed by SIGKILL on first"):
        carry_out(job, "first")
    between = Status.load(job.folder)
    assert between.state == RUNNING and "SIGKILL" in between.error
    status = carry_out(job, "second")
    assert (status.state, status.retries, status.node) == (DONE, 1, "second")
    assert status.started == between.started


def test_another_attempt_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    job = scripted(tmp_path, "run", "print('from the start')")
    onward = tmp_path / "onward.py"
    onward.write_text("print('onward')")
    job = replace(job, onward=(str(onward),))
    assert carry_out(job, "node").state == DONE
    assert (job.folder / LOG).read_text().endswith("from the start\n")
    (job.folder / "checkpoints").mkdir()
    (job.folder / "checkpoints" / "000000000128.safetensors").touch()
    assert carry_out(job, "node").state == DONE
    assert (job.folder / LOG).read_text().endswith("onward\n")


def test_a_job_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, sys, time\npid = os.fork()\nname = 'child' if pid == 0 else 'parent'\n"
        "(pathlib.Path(sys.argv[1]) / name).write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    job = scripted(tmp_path, "endless", text)
    parent = (
        "import sys, time\nfrom pathlib import Path\nfrom agents.cluster.work import Job, running\n"
        f"job = Job('endless', Path({str(job.folder)!r}), {job.arguments!r}, cwd=Path({str(tmp_path)!r}))\n"
        "with running(job, job.arguments): time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        pids = [int(_content(job.folder / name)) for name in ("child", "parent")]
        assert all(_alive(pid) for pid in pids)
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "the job outlived the process that started it"
        time.sleep(0.1)


def test_a_job_does_not_outlive_its_block(tmp_path: Path) -> None:
    job = scripted(tmp_path, "endless", "import time\ntime.sleep(600)")
    with running(job, job.arguments) as process:
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    job = scripted(tmp_path, "good", "print('once')")
    before = carry_out(job, "node")
    (tmp_path / "good.py").unlink()
    assert run_jobs([job]) == [before]


def test_a_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    job = scripted(tmp_path, "good", "")
    carry_out(job, "node")
    with pytest.raises(UserError, match="found a run of another command"):
        run_jobs([replace(job, arguments=(*job.arguments, "seed=2"))])
    other = Job("other", tmp_path / "other", job.arguments)
    (other.folder / "checkpoints").mkdir(parents=True)
    (other.folder / "checkpoints" / "000000000128.safetensors").touch()
    with pytest.raises(UserError, match="expected an empty folder"):
        run_jobs([other])


def _content(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.is_file() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.05)
    return path.read_text()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return f"{pid} (" in (stat := Path(f"/proc/{pid}/stat").read_text()) and ") Z" not in stat
