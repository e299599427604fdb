"""One trial of a search: a training run that reports every validation to Ray Tune."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.cluster.curve import Curve
from agents.cluster.overrides import quoted
from agents.cluster.ray_cluster import this_node
from agents.cluster.status import FAILED, known_status, last_line
from agents.cluster.work import Job, carry_out
from agents.paths import PROJECT

TRIALS = "trials"
WATCH_EVERY = 4
"""Looks at the process for one look at the event file."""


@dataclass(frozen=True)
class Plan:
    """What all trials have in common.

    Attributes:
        out: Folder of the search, absolute.
        cwd: Working directory, absolute.
        train: Overrides of every training.
        metric: Scalar of tensorboard that is reported.
        cpus: Cores of a training.
    """

    out: Path
    cwd: Path
    train: tuple[str, ...]
    metric: str
    cpus: int


def trial(values: Mapping[str, Any], plan: Plan) -> None:
    """Train with some values; Ray Tune calls this on a node.

    A node that was killed, or a process that was, is an error to Ray Tune, which calls again; a training that failed
    before fails at once.

    Args:
        values: By key of the training's configuration.
        plan: The rest.

    Raises:
        RuntimeError: If the training failed.
    """
    import ray
    from ray import tune

    job = trial_job(str(tune.get_context().get_trial_id()), values, plan)
    job.folder.mkdir(parents=True, exist_ok=True)
    before = known_status(job.folder)
    if before is not None and before.state == FAILED:
        raise RuntimeError(last_line(before.error))
    curve, looks = Curve(job.folder, plan.metric), 0

    def watch() -> None:
        nonlocal looks
        looks += 1
        if looks % WATCH_EVERY == 0:
            tell()

    def tell() -> None:
        for point in curve.news():
            tune.report({"decisions": point.decisions, "speedup": point.speedup})

    status = carry_out(job, this_node(ray), watch)
    if status.state == FAILED:
        raise RuntimeError(last_line(status.error))
    tell()


def trial_job(name: str, values: Mapping[str, Any], plan: Plan) -> Job:
    """The training run of a trial."""
    folder = plan.out / TRIALS / name
    script = str(PROJECT / "train.py")
    overrides = [f"{key}={value}".replace(" ", "") for key, value in sorted(values.items())]
    return Job(
        name=" ".join(overrides),
        folder=folder,
        arguments=(script, *plan.train, *overrides, f"hydra.run.dir={quoted(folder)}"),
        onward=(script, f"resume={quoted(folder)}"),
        cwd=plan.cwd,
        cpus=plan.cpus,
    )
