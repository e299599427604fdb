"""The event file that tensorboard reads. A run that goes on writes another one beside it, without overlap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

METRIC = "validation/speedup_vs_plain"
"""What tensorboard's table of runs compares them by."""


class EventFile(TensorBoardOutputFormat):
    """stable-baselines3's writer, able to go on.

    Args:
        folder: The run's ``tensorboard/``.
        resumed_at: Decisions at which the run goes on; what older files hold of later ones is void. None = a new run:
            all of them is void, e.g. of one that was killed before its first checkpoint.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        purge = 0 if resumed_at is None else resumed_at + 1
        self.writer = SummaryWriter(str(folder), purge_step=purge)
        self._is_closed = False


def open_logger(folder: Path, resumed_at: int | None) -> Logger:
    """The logger of a run whose only output is its event file."""
    folder.mkdir(parents=True, exist_ok=True)
    return Logger(str(folder), [EventFile(folder, resumed_at)])


def record_config(logger: Logger, config: Mapping[str, Any], decisions: int) -> None:
    """Log the configuration as text, and its numbers as hyperparameters."""
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    logger.record("config", f"```yaml\n{text}```", exclude=("stdout", "log", "json", "csv"))
    if decisions == 0:
        logger.record("hparams", HParam(hyperparameters(config), {METRIC: 0.0}), exclude=("stdout", "log", "json"))
    logger.dump(decisions)


def hyperparameters(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """The seed, and everything of the agent, the environment and the workload, by dotted key."""
    found: dict[str, bool | float | str] = {"seed": config.get("seed", 0)}
    for group in ("agent", "env", "workload"):
        for key, value in dict(config.get(group) or {}).items():
            found[f"{group}.{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return found
