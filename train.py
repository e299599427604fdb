"""Train a policy, judge it against heuristics, export it.  ``python train.py --help`` lists every option."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from agents.pipeline import run
from runtime.errors import UserError


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    try:
        run(config, Path(HydraConfig.get().runtime.output_dir))
    except UserError as error:
        sys.exit(f"train.py: {error}")


if __name__ == "__main__":
    main()
