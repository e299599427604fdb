"""``hydra/launcher=ray``: every job of a sweep is a run of its own on a Ray cluster.

The published plugin (hydra-ray-launcher) runs jobs inside Ray's workers: a job that ends with ``sys.exit`` takes its
worker down, its message is lost, Ray tries it again, and then the whole sweep ends. Here a job is a process, and what
becomes of it stands in its folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from agents.cluster.overrides import config_dirs, is_live, names, quoted
from agents.cluster.pool import run_jobs
from agents.cluster.profiles import SharedProfiles
from agents.cluster.status import DONE, FAILED, Status, print_statuses, summary
from agents.cluster.work import Job
from runtime.errors import UserError

TARGET = "hydra_plugins.specpilot.RayLauncher"
"""Hydra takes plugins by names of this package only."""
OURS = (
    "hydra/launcher",
    "hydra/sweeper",
    "hydra.launcher",
    "hydra.sweeper",
    "hydra.sweep.",
    "hydra.mode",
    "hydra.run.",
)
"""Overrides of the sweep itself, which its jobs do not get."""


class SweepError(CompactHydraException):
    """Some jobs of a sweep failed, or it could not begin. Hydra prints it without a traceback and exits with 1."""


def register_launcher() -> None:
    """Make ``hydra/launcher=ray`` known to Hydra; before ``hydra.main``."""
    Plugins.instance().class_name_to_class[TARGET] = RayLauncher


class RayLauncher(Launcher):
    """Runs jobs on a Ray cluster. The arguments are explained in ``conf/hydra/launcher/ray.yaml``."""

    def __init__(self, address: str | None, num_cpus: int, max_retries: int, overrides: Sequence[str]) -> None:
        self.address, self.num_cpus, self.max_retries = address, num_cpus, max_retries
        self.overrides = tuple(overrides)
        self._config = DictConfig({})
        self._context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._config, self._context = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a batch of jobs and print their table.

        Raises:
            SweepError: If the cluster or the configuration of a job does not work: no job has begun then.
        """
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        sweep = Path(str(self._config.hydra.sweep.dir)).absolute()
        try:
            profiles = SharedProfiles(sweep)
            jobs = [self._job(sweep, profiles, initial_job_idx + i, each) for i, each in enumerate(job_overrides)]
            jobs = [replace(job, name=name) for job, name in zip(jobs, names(job_overrides), strict=True)]
            print(f"{len(jobs)} jobs in {sweep}", flush=True)
            statuses = run_jobs(jobs, self.address, self.max_retries)
        except UserError as error:
            raise SweepError(f"hydra/launcher=ray: {error}") from None
        print_statuses(statuses)
        failure = SweepError(f"{summary(statuses)}; every job's folder in {sweep} has its status.json and job.log")
        return [_job_return(status, each, failure) for status, each in zip(statuses, job_overrides, strict=True)]

    def _job(self, sweep: Path, profiles: SharedProfiles, number: int, overrides: Sequence[str]) -> Job:
        assert self._context is not None, "Hydra calls setup first"
        asked = [*self.overrides, *overrides]
        config = self._context.config_loader.load_sweep_config(self._config, asked)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        HydraConfig.instance().set_config(config)
        folder = sweep / str(OmegaConf.select(config, "hydra.sweep.subdir"))
        live = is_live(config, number)
        if not live:
            asked += profiles.overrides(config)
        program, ours = self._program(config), self._hydra_overrides()
        resumes = OmegaConf.select(config, "resume", default="") is None  # the key is known, and not in use
        return Job(
            name=f"job {number}",
            folder=folder,
            arguments=(*program, *asked, f"hydra.run.dir={quoted(folder)}", *ours),
            onward=(*program, f"resume={quoted(folder)}", *ours) if resumes else (),
            cwd=Path.cwd(),
            cpus=self.num_cpus,
            live=live,
        )

    def _program(self, config: DictConfig) -> list[str]:
        """The script, and where its configuration is."""
        sources: Sequence[Mapping[str, Any]] = config.hydra.runtime.config_sources
        name = ["--config-name", str(config.hydra.job.config_name)] if config.hydra.job.config_name else []
        return [str(Path(sys.argv[0]).absolute()), *name, *config_dirs(sources)]

    def _hydra_overrides(self) -> list[str]:
        return [each for each in self._config.hydra.overrides.hydra if not each.lstrip("+~").startswith(OURS)]


def _job_return(status: Status, overrides: Sequence[str], failure: SweepError) -> JobReturn:
    """What Hydra's sweeper gets: the speed-up, or the failure of the sweep."""
    returned = JobReturn(overrides=list(overrides), working_dir=str(Path.cwd()))
    returned.status = JobStatus.COMPLETED if status.state == DONE else JobStatus.FAILED
    returned.return_value = failure if status.state == FAILED else status.speedup
    return returned
