"""Search hyperparameters: ``python -m agents.cluster.tune trials=32 out=outputs/tune``.

Every trial is a training run of its own (``train.py``) in ``out/trials/<id>``. What it validates is reported to Ray
Tune, whose ASHA rule stops those that fall behind, and Optuna chooses the next values. Leaves ``out/tune.json``.
Started again after a kill, it goes on: finished trials are kept, others go on from their last checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from agents.cluster.ray_cluster import connected
from agents.cluster.space import search_space
from agents.cluster.trial import Plan, trial
from agents.cluster.trial_table import Trial, print_trials, read_trials, settle, write_trials
from runtime.errors import UserError
from runtime.files import read_json, write_json

PLAN = "plan.json"
PLAN_SCHEMA = 1
PERIPHERAL = ("out", "trials", "concurrent", "num_cpus", "max_retries", "address")
"""Keys that may change when a search goes on."""


def run_search(config: DictConfig) -> list[Trial]:
    """Search as the configuration says.

    Args:
        config: As composed from ``conf/tune.yaml``.

    Returns:
        The trials, best first.

    Raises:
        UserError: If the configuration or the cluster does not work, or ``out`` holds another search.
    """
    out = Path(to_absolute_path(config.out))
    options = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    keep_plan(out, {key: value for key, value in options.items() if key not in PERIPHERAL})
    plan = Plan(
        out=out,
        cwd=Path.cwd(),
        train=(*options["train"], f"agent.total_timesteps={config.decisions}", f"agent.eval_every={config.eval_every}"),
        metric=config.metric,
        cpus=config.num_cpus,
    )
    with connected(config.address):
        _tuner(config, options, plan).fit()
    settle(out)
    trials = read_trials(out, config.metric)
    write_trials(out, trials, config.metric)
    return trials


def keep_plan(out: Path, plan: Mapping[str, Any]) -> None:
    """Note what is searched; refuse to go on with another search.

    Raises:
        UserError: If the folder holds another search.
    """
    path = out / PLAN
    if not path.is_file():
        write_json(path, {"schema": PLAN_SCHEMA, "plan": plan})
        return
    before = read_json(path, "plan of a search", PLAN_SCHEMA)["plan"]
    if changed := sorted(key for key in {*before, *plan} if before.get(key) != plan.get(key)):
        raise UserError(f"{out}: holds a search with other values of {', '.join(changed)}: choose another out=DIR")


def _tuner(config: DictConfig, options: Mapping[str, Any], plan: Plan) -> Any:
    """Ray's tuner: a new one, or the one that was interrupted."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    space = search_space(options["search"])
    work = tune.with_resources(tune.with_parameters(trial, plan=plan), {"cpu": config.num_cpus})
    storage = plan.out / "ray"
    if tune.Tuner.can_restore(str(storage)):
        return tune.Tuner.restore(str(storage), work, resume_unfinished=True, param_space=space)
    return tune.Tuner(
        work,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="speedup",
            mode="max",
            search_alg=OptunaSearch(seed=config.seed),
            scheduler=ASHAScheduler(
                time_attr="decisions",
                max_t=config.decisions,
                grace_period=config.grace,
                reduction_factor=config.factor,
            ),
            num_samples=config.trials,
            max_concurrent_trials=config.concurrent,
        ),
        run_config=tune.RunConfig(
            name=storage.name,
            storage_path=str(plan.out),
            verbose=1,
            failure_config=tune.FailureConfig(max_failures=config.max_retries),
        ),
    )


@hydra.main(version_base=None, config_path="../../conf", config_name="tune")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    try:
        trials = run_search(config)
    except UserError as error:
        sys.exit(f"tune: {error}")
    print_trials(trials, tuple(config.train))
    if not any(trial.speedup is not None for trial in trials):
        sys.exit(1)


if __name__ == "__main__":
    main()
