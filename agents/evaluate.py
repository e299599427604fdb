"""Judge a bundle: ``python -m agents.evaluate suite=default policy=outputs/latest/bundle out=evaluation``."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from agents.pipeline import live_world, open_target
from agents.setup import prepare
from agents.suite import Policy, run_suite
from runtime.bundle import read_bundle
from runtime.errors import UserError


def evaluate_bundle(config: DictConfig) -> None:
    """Run the suite of the configuration over the baselines and, if one is given, a bundle's policy."""
    setting = prepare(config)
    policies: dict[str, Policy] = {}
    if config.policy:
        bundle = read_bundle(Path(to_absolute_path(config.policy)))
        if bundle.zoo.manifest() != setting.zoo.manifest():
            raise UserError(
                f"policy {config.policy}: a bundle of zoo '{bundle.zoo.name}' with other files than the zoo "
                f"'{setting.zoo.name}' of this configuration: choose the bundle's zoo, or train for this one"
            )
        policies["policy"] = Policy(bundle.controller, bundle.policy_sha256)
    live = None
    if config.suite.env == "live":
        live = live_world(config, setting, open_target(config, setting), "heldout")
    out = Path(to_absolute_path(config.out))
    try:
        run_suite(config, setting, policies, out, live)
    finally:
        if live is not None:
            live.close()
    print(f"report: {out / 'report.html'}")


@hydra.main(version_base=None, config_path="../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    try:
        evaluate_bundle(config)
    except UserError as error:
        sys.exit(f"evaluate: {error}")


if __name__ == "__main__":
    main()
