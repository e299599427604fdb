"""Settings of an agent, as they come from ``conf/agent``."""

from __future__ import annotations

from dataclasses import dataclass

from agents.schedules import SCHEDULES
from agents.trimming import ACTION_SETS
from runtime.core import GAMMAS, STOP_LEVELS

ALGORITHMS = ("maskable_ppo", "ppo", "recurrent_ppo", "branching_dqn")
NETWORKS = ("flat", "equivariant")
NORMALISATIONS = ("table", "running")
KEPT = ("best", "last")
CHOICES = {
    "algorithm": ALGORITHMS,
    "network": NETWORKS,
    "normalise": NORMALISATIONS,
    "schedule": SCHEDULES,
    "keep": KEPT,
    "actions": ACTION_SETS,
    "fixed_gamma": GAMMAS,
    "fixed_stop": tuple(range(len(STOP_LEVELS))),
}
LEAST = {
    "total_timesteps": 1,
    "n_steps": 1,
    "batch_size": 1,
    "n_epochs": 1,
    "eval_streams": 1,
    "checkpoint_every": 0,
    "patience": 0,
    "imitation_streams": 1,
    "imitation_epochs": 1,
    "lstm_size": 1,
    "buffer_size": 1,
    "learning_starts": 0,
    "target_every": 1,
}


@dataclass(frozen=True)
class AgentSettings:
    """Hyperparameters of one training run; each is explained in ``conf/agent/maskable_ppo.yaml``."""

    algorithm: str
    residual: bool
    total_timesteps: int
    learning_rate: float
    n_steps: int
    batch_size: int
    n_epochs: int
    gamma: float
    gae_lambda: float
    ent_coef: float
    clip_range: float
    target_kl: float | None
    widths: tuple[int, ...]
    sharpness: float
    token_price: float
    eval_every: int
    eval_streams: int
    schedule: str = "linear"
    network: str = "flat"
    normalise: str = "table"
    actions: str = "all"
    fixed_gamma: int = 4
    fixed_stop: int = 0
    fixed_draft: str | None = None
    warm_start: str | None = None
    imitation_streams: int = 64
    imitation_epochs: int = 20
    checkpoint_every: int = 20_000
    patience: int = 0
    min_gain: float = 0.0
    keep: str = "best"
    lstm_size: int = 128
    buffer_size: int = 100_000
    learning_starts: int = 1_000
    target_every: int = 1_000
    explore_share: float = 0.5
    explore_start: float = 0.2
    explore_end: float = 0.02

    def __post_init__(self) -> None:
        for name, expected in CHOICES.items():
            if getattr(self, name) not in expected:
                known = ", ".join(map(str, expected))
                raise ValueError(f"agent.{name}: expected one of {known}, got {getattr(self, name)!r}")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"agent.{name}: expected at least {least}, got {getattr(self, name)}")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"agent.widths: expected at least one width of at least 1, got {list(self.widths)}")
        for name in ("explore_share", "explore_start", "explore_end"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"agent.{name}: expected 0 to 1, got {getattr(self, name)}")
        self._check_algorithm()

    def _check_algorithm(self) -> None:
        """What the algorithms do not combine with."""
        if self.algorithm == "recurrent_ppo" and self.network == "equivariant":
            raise ValueError(
                "agent.network: the equivariant network has no memory, recurrent_ppo needs one: use "
                "agent.network=flat, or another agent"
            )
        if self.algorithm == "recurrent_ppo" and self.warm_start in ("heuristic", "oracle"):
            raise ValueError(
                f"agent.warm_start={self.warm_start}: imitation shows single decisions, recurrent_ppo learns from "
                "sequences: use agent.warm_start=null (it starts from the heuristic already), or another agent"
            )
        if self.algorithm == "branching_dqn" and self.normalise == "running":
            raise ValueError(
                "agent.normalise=running needs rollouts, branching_dqn learns from a replay buffer: use "
                "agent.normalise=table"
            )
