"""One question, one plot: ``python -m agents.study study=slots suite=memspec policy=BUNDLE out=DIR``.

One key of the configuration takes several values; the same controllers, tuned once where the suite stands, serve the
same held-out streams at each. Leaves ``DIR/study-<name>.json`` and ``.png``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import hydra
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from agents.bootstrap import ratio_interval
from agents.evaluation import Factory, evaluate, speeds
from agents.report.study import Study
from agents.serving import StreamResult
from agents.setup import prepare
from agents.suite import HELDOUT_SEED
from agents.tuning import Tuned, tuned_baselines
from runtime.bundle import Bundle, read_bundle
from runtime.errors import UserError

PLAIN = "plain"


def run_study(config: DictConfig) -> Study:
    """Vary the key of the configuration's study.

    Raises:
        UserError: If the configuration, or a file it names, does not work.
    """
    study = config.study
    bundle = read_bundle(Path(to_absolute_path(config.policy))) if config.policy else None
    wanted = {PLAIN, *study.controllers}
    setting = prepare(config)
    streams = 1 if config.dry_run else config.suite.tuning_streams
    _, tuned = tuned_baselines(setting, streams, config.seed, config.progress, lambda name: name in wanted)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for value in study.points:
        at = _at(config, value, tuned, bundle)
        for name, results in at.items():
            if name != PLAIN:
                found.setdefault(name, []).append((*ratio_interval(speeds(results), speeds(at[PLAIN])),))
    profile = setting.heldout.costs.profile
    return Study(
        name=study.name,
        title=study.title,
        label=study.label,
        log=study.log,
        suite=config.suite.name,
        device=profile.device,
        simulated=profile.simulated or study.key.startswith("device."),
        values=tuple(float(value) for value in study.points),
        speedups={name: tuple(points) for name, points in found.items()},
    )


def _at(
    config: DictConfig, value: float, tuned: Mapping[str, Tuned], bundle: Bundle | None
) -> dict[str, list[StreamResult]]:
    """Results by controller with the key at one value."""
    changed = config.copy()
    for key in (config.study.key, *config.study.get("also", ())):
        OmegaConf.update(changed, key, value)
    world = prepare(changed).heldout
    factories: dict[str, Factory] = {name: partial(each.make, world.costs) for name, each in tuned.items()}
    if bundle is not None and "policy" in config.study.controllers:
        factories["policy"] = bundle.controller
    chosen = world.streams(HELDOUT_SEED + config.seed, 1 if config.dry_run else config.study.streams)
    print(f"{config.study.key} = {value}", flush=True)
    results = evaluate(factories, chosen, world.session, config.seed, progress=config.progress, workers=0)
    return {name: [result for result in results if result.controller == name] for name in factories}


@hydra.main(version_base=None, config_path="../conf", config_name="study")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    try:
        out = Path(to_absolute_path(config.out))
        print(f"study: {run_study(config).save(out)}")
    except UserError as error:
        sys.exit(f"study: {error}")


if __name__ == "__main__":
    main()
