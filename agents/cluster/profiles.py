"""One profile for all jobs of a sweep: measured, or taken from the cache, before the first job begins.

A node that measured itself while other jobs ran on it would measure them too, and seeds of one sweep would not be
comparable.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from agents.cluster.overrides import quoted
from agents.setup import load_profile, load_zoo


class SharedProfiles:
    """The profiles of a sweep, by zoo; they are kept in the sweep's folder.

    Args:
        sweep: The sweep's folder, absolute, on a disk that all nodes share.
    """

    def __init__(self, sweep: Path) -> None:
        self._sweep = sweep
        self._paths: dict[str, Path] = {}

    def overrides(self, config: DictConfig) -> list[str]:
        """What a job on replay is told, if it would measure the machine it runs on.

        Args:
            config: The job's composed configuration.
        """
        if OmegaConf.select(config, "device") is None or config.device.profile or config.device.built:
            return []
        wanted = OmegaConf.create({key: config[key] for key in ("zoo", "device", "engine", "dtype", "progress")})
        wanted.device.load_rounds = None  # the job applies it
        key = f"{wanted.zoo.folder} {wanted.zoo.target} {wanted.device.threads} {wanted.engine} {wanted.dtype}"
        if key not in self._paths:
            path = self._sweep / f"profile-{len(self._paths)}.json"
            load_profile(wanted, load_zoo(wanted)).save(path)
            self._paths[key] = path
        return [f"device.profile={quoted(self._paths[key])}"]
