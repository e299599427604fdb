"""One group of the configuration as what it stands for in code: the workload, the agent's settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from agents.settings import AgentSettings
from envs.workload import WorkloadConfig
from runtime.errors import UserError


def workload_config(workload: DictConfig) -> WorkloadConfig:
    """The workload of a configuration, checked."""
    values = cast(dict[str, Any], OmegaConf.to_container(workload))
    same_keys("workload", WorkloadConfig, values)
    lists = {name: tuple(values[name]) for name in ("domains", "kinds")}
    return WorkloadConfig(**{**values, **lists})


def judged_workload(config: DictConfig) -> DictConfig:
    """The workload of the held-out streams: a suite may change some keys of it."""
    changes = config.suite.judged_workload
    return config.workload if changes is None else cast(DictConfig, OmegaConf.merge(config.workload, changes))


def settings_of(agent: DictConfig) -> AgentSettings:
    """The hyperparameters of a configuration, checked; lists become tuples."""
    values = cast(dict[str, Any], OmegaConf.to_container(agent, resolve=True))
    same_keys("agent", AgentSettings, values)
    try:
        arguments: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return AgentSettings(**arguments)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None


def same_keys(group: str, kind: type[Any], values: Mapping[str, object]) -> None:
    """A group has the fields of its dataclass, no others."""
    known = {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(kind)}
    wrong = [f"no such key as {near(name, known)}" for name in values if name not in known]
    wrong += [f"'{name}' is missing" for name, needed in known.items() if needed and name not in values]
    if wrong:
        raise UserError(f"{group} configuration: {', '.join(wrong)}: expected {', '.join(known)}")


def near(name: str, known: Collection[str]) -> str:
    """A name in quotes, with what may have been meant."""
    close = get_close_matches(name, known, n=1)
    return f"'{name}'" + (f" (did you mean '{close[0]}'?)" if close else "")
