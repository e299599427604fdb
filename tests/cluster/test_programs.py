"""The programs on two Ray nodes of this machine, over a tiny zoo: the figures are those of one machine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from agents.cluster.status import Status
from agents.paths import PROJECT
from tests.cluster.conftest import program, started
from tests.tiny_zoo import TinyZoo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
]

MEASURED = {"decide_us_p50", "decide_us_p99"}
"""Columns of a report that are of the wall clock even on replay."""


def small(tiny_zoo: TinyZoo) -> list[str]:
    return [
        f"zoo.folder={tiny_zoo.zoo.folder}",
        f"device.profile={tiny_zoo.profile}",
        "suite=quick",
        "suite.controllers=[memspec,bandit_ucb,policy]",
        "suite.streams=2",
        "suite.tuning_streams=1",
        "workload.requests=3",
        "progress=false",
    ]


def test_a_sweep_runs_all_jobs_and_reports_the_failing_one(cluster: Any, tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    started(cluster), started(cluster)
    common = [*small(tiny_zoo), "dry_run=true", "env.n_envs=1", "agent.widths=[8]", f"hydra.sweep.dir={tmp_path}/sweep"]
    sweep = ["-m", "hydra/launcher=ray", "seed=0", "agent.algorithm=maskable_ppo,nonsense"]
    done = program([str(PROJECT / "train.py"), *sweep, *common], cluster.address, tmp_path)
    assert done.returncode == 1
    assert "2 jobs: 1 done, 1 failed" in done.stderr
    good, bad = (Status.load(tmp_path / "sweep" / number) for number in "01")
    assert (good.name, good.state) == ("agent.algorithm=maskable_ppo", "done")
    assert (bad.name, bad.state) == ("agent.algorithm=nonsense", "failed")
    assert "train.py: agent.algorithm: expected one of" in bad.error
    alone = program([*shlex.split(good.command)[1:], f"hydra.run.dir={tmp_path}/x/alone"], "", tmp_path)
    assert alone.returncode == 0, alone.stderr
    report = json.loads((tmp_path / "x" / "alone" / "evaluation" / "report.json").read_text())
    assert good.speedup == next(r["speedup_vs_plain"] for r in report["rows"] if r["controller"] == "policy")


def test_a_suite_has_the_figures_of_one_machine(cluster: Any, tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    started(cluster), started(cluster)
    rows = []
    for module in ("agents.evaluate", "agents.cluster.evaluate"):
        out = tmp_path / module
        arguments = ["-m", module, *small(tiny_zoo), f"policy={tiny_zoo.bundle}", f"out={out}"]
        done = program(arguments, cluster.address, tmp_path)
        assert done.returncode == 0, done.stderr
        report = json.loads((out / "report.json").read_text())
        rows.append([{key: row[key] for key in row if key not in MEASURED} for row in report["rows"]])
    assert rows[0] == rows[1]
