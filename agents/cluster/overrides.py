"""What overrides say of the jobs of a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import filter_overrides
from omegaconf import DictConfig, OmegaConf

from runtime.errors import UserError


def is_live(config: DictConfig, number: int) -> bool:
    """Whether a job runs the real models on the wall clock: it trains on them, or tries its policy on them.

    Raises:
        UserError: If it wants several live environments.
    """
    live = OmegaConf.select(config, "env.name") == "live"
    if live and config.env.n_envs != 1:
        raise UserError(
            f"job {number}: env.n_envs: expected 1 with env=live (a device decodes one request at a time), got "
            f"{config.env.n_envs}: say `env.n_envs=1`"
        )
    tries = bool(config.get("live_check")) and not config.get("dry_run")
    judges = OmegaConf.select(config, "suite.env") == "live" and not config.get("dry_run")
    return live or tries or judges


def names(job_overrides: Sequence[Sequence[str]]) -> list[str]:
    """What tells the jobs of a sweep apart: the overrides that not all of them have."""
    common = set.intersection(*(set(overrides) for overrides in job_overrides))
    return [
        " ".join(each for each in filter_overrides(overrides) if each not in common or len(job_overrides) == 1)
        for overrides in job_overrides
    ]


def config_dirs(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """``--config-dir`` options of a command line, from Hydra's list of where a configuration comes from."""
    given = [str(source["path"]) for source in sources if source["provider"] == "command-line"]
    return [option for folder in given for option in ("--config-dir", folder)]


def quoted(path: Path) -> str:
    """A path as the value of a Hydra override."""
    if re.fullmatch(r"[\w/.+-]+", str(path)):
        return str(path)
    return "'" + str(path).replace("'", "\\'") + "'"
