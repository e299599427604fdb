"""Settings of an agent, as they come from ``conf/agent``."""

from __future__ import annotations

from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        if self.algorithm not in ("maskable_ppo", "ppo"):
            raise ValueError(f"agent.algorithm: expected maskable_ppo or ppo, got {self.algorithm!r}")
        for name in ("total_timesteps", "n_steps", "batch_size", "n_epochs", "eval_streams"):
            if getattr(self, name) < 1:
                raise ValueError(f"agent.{name}: expected at least 1, got {getattr(self, name)}")
