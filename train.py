"""Train a policy, judge it against heuristics, export it.  ``python train.py --help`` lists every option."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from agents.checkpoints.config import how_to_resume, in_run_folder, resumed
from agents.cluster.launcher import register_launcher
from agents.pipeline import run
from runtime.errors import UserError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell gives it."""


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    try:
        config, found = resumed(config, hydra_config.overrides.task)
        folder = folder if found is None else found.run
        run(config, folder, found)
    except UserError as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        print(f"\ntrain.py: interrupted; {how_to_resume(folder)}", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    try:
        sys.argv[1:] = in_run_folder(sys.argv[1:])
    except UserError as error:
        sys.exit(f"train.py: {error}")
    register_launcher()
    main()
