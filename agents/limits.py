"""What the numbers of ``conf/`` may be, key by key. Rules that join several keys are in ``agents/validation.py``."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

ABSENT: Any = object()
"""A key that the configuration does not have, or whose value is still missing."""


class Limit(NamedTuple):
    """What one key may be.

    Attributes:
        key: Dotted.
        least: Smallest value.
        most: Largest value; None = no limit.
        whole: Whether it is a whole number.
        above: Whether ``least`` itself is too little.
        null: Whether null is allowed.
    """

    key: str
    least: float
    most: float | None = None
    whole: bool = True
    above: bool = False
    null: bool = False

    def problem(self, value: object) -> str | None:
        """What is wrong with a value; None = nothing."""
        if value is None and self.null:
            return None
        number = isinstance(value, Integral if self.whole else Real) and not isinstance(value, bool)
        if not number:
            kind = "a whole number" if self.whole else "a number"
            return f"{self.key}: expected {kind}{' or null' if self.null else ''}, got {value!r}"
        assert isinstance(value, int | float)
        if value < self.least or (self.above and value == self.least) or (self.most is not None and value > self.most):
            least = f"{'above' if self.above else 'at least'} {self.least:g}"
            most = "" if self.most is None else f" and at most {self.most:g}"
            return f"{self.key}: expected {least}{most}, got {value}"
        return None


def _share(key: str) -> Limit:
    return Limit(key, 0.0, 1.0, whole=False)


LIMITS = (
    Limit("seed", 0, 2**32 - 1),
    Limit("env.n_envs", 1),
    Limit("env.budget_drafts", 0, whole=False),
    Limit("env.budget_kv_tokens", 0, whole=False),
    Limit("env.disk_kv_tokens", 0, whole=False),
    Limit("env.kv_reserve_tokens", 1),
    Limit("env.decision_interval", 1),
    Limit("env.max_steps", 0),
    *(Limit(f"agent.{name}", 1) for name in ("total_timesteps", "n_steps", "batch_size", "n_epochs")),
    Limit("agent.eval_every", 1),
    Limit("agent.eval_streams", 1),
    *(Limit(f"agent.{name}", 0, whole=False, above=True) for name in ("learning_rate", "clip_range", "sharpness")),
    *(Limit(f"agent.{name}", 0, whole=False) for name in ("token_price", "ent_coef", "min_gain")),
    _share("agent.gamma"),
    _share("agent.gae_lambda"),
    Limit("agent.target_kl", 0, whole=False, above=True, null=True),
    Limit("device.threads", 1, null=True),
    Limit("device.load_rounds", 0, whole=False, above=True, null=True),
    Limit("workload.requests", 1),
    Limit("workload.min_topic_requests", 1),
    Limit("workload.max_topic_requests", 1),
    _share("workload.follow_up"),
    Limit("workload.max_new_tokens", 0),
    _share("workload.short_share"),
    Limit("workload.short_tokens", 1),
    Limit("suite.streams", 1),
    Limit("suite.tuning_streams", 1),
    Limit("suite.live_prompts", 1),
    Limit("suite.resamples", 1),
    Limit("suite.requests", 1, null=True),
    Limit("study.streams", 1),
)
FLAGS = ("dry_run", "progress", "live_check", "env.batched", "agent.residual", "device.remeasure", "study.log")
"""Keys that are true or false."""


def value_at(config: DictConfig, key: str) -> Any:
    """The value of a dotted key, or ``ABSENT``."""
    return OmegaConf.select(config, key, default=ABSENT)


def outside_limits(config: DictConfig) -> Iterator[tuple[str, str]]:
    """The keys of a configuration whose value cannot be, and what is wrong with each."""
    for limit in LIMITS:
        value = value_at(config, limit.key)
        if value is not ABSENT and (problem := limit.problem(value)):
            yield limit.key, problem
    for key in FLAGS:
        value = value_at(config, key)
        if value is not ABSENT and not isinstance(value, bool):
            yield key, f"{key}: expected true or false, got {value!r}"
