"""Judge a bundle on a cluster: ``python -m agents.cluster.evaluate suite=memspec policy=BUNDLE out=DIR``.

The cluster is that of ``RAY_ADDRESS``; options and report are those of ``python -m agents.evaluate``. On replay,
baselines are tuned and controllers serve the streams on all nodes, a controller all its streams in their order, because
some learn from one to the next. A live suite is one job on one node's device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from agents.cluster.overrides import config_dirs
from agents.cluster.pool import run_jobs
from agents.cluster.spread import over_the_cluster
from agents.cluster.status import FAILED, print_statuses
from agents.cluster.work import Job
from agents.evaluate import evaluate_bundle
from runtime.errors import UserError


def evaluate_on_cluster(config: DictConfig, options: Sequence[str]) -> bool:
    """Run the suite of a configuration.

    Args:
        config: As composed from ``conf/evaluate.yaml``.
        options: What it was composed with, overrides and ``--config-dir``; a live suite is run by them on its node.

    Returns:
        Whether it was done.

    Raises:
        UserError: If the configuration, a file it names or the cluster does not work.
    """
    if config.suite.env != "live":
        with over_the_cluster():
            evaluate_bundle(config)
        return True
    out = Path(to_absolute_path(config.out))
    name = f"suite {config.suite.name}, live"
    job = Job(name, out, ("-m", "agents.evaluate", *options), cwd=Path.cwd(), live=True)
    statuses = run_jobs([job])
    print_statuses(statuses)
    return all(status.state != FAILED for status in statuses)


@hydra.main(version_base=None, config_path="../../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    try:
        hydra_config = HydraConfig.get()
        sources = cast(Sequence[Mapping[str, Any]], hydra_config.runtime.config_sources)
        options = [*config_dirs(sources), *hydra_config.overrides.task]
        if not evaluate_on_cluster(config, options):
            sys.exit(1)
    except UserError as error:
        sys.exit(f"cluster.evaluate: {error}")


if __name__ == "__main__":
    main()
