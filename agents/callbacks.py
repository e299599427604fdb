"""What happens while PPO learns: validation, the best policy kept, checkpoints, progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from agents.ppo import Learner, predict
from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.core import Decision, Outcome, Phase
from runtime.files import written_whole


class LearnerController:
    """A learner in training as a controller: deterministic, masked."""

    def __init__(self, learner: Learner, codec: ActionCodec, name: str = "policy") -> None:
        self.name = name
        self._learner, self._codec = learner, codec
        self.choices: Counter[str] = Counter()

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        decision = self._codec.decode(predict(self._learner, observation))
        if observation.phase is Phase.DECODE:
            self.choices["plain" if decision.draft is None else f"gamma_{decision.gamma}"] += 1
        return decision

    def learn(self, outcome: Outcome) -> None: ...


class ValidationCallback(BaseCallback):
    """Judges the policy on validation streams, logs it, keeps the best weights and a checkpoint.

    Args:
        judge: From a controller to its speed-up over plain on the validation streams.
        codec: The action codec.
        every: Decisions between two validations; the untrained policy is judged first.
        folder: Checkpoints go here: ``best.zip`` and ``last.zip``.
        total: Decisions of the whole run, for the progress bar.
        progress: Whether to show the bar.
    """

    def __init__(
        self,
        judge: Callable[[LearnerController], float],
        codec: ActionCodec,
        every: int,
        folder: Path,
        total: int,
        progress: bool,
    ) -> None:
        super().__init__()
        self._judge, self._codec, self._every, self._folder = judge, codec, every, folder
        self._bar: Any = tqdm(total=total, desc="training", unit="decisions", disable=not progress)
        self._next = 0
        self.best = -math.inf
        self.curve: list[tuple[int, float]] = []

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self._next:
            self._next += self._every
            self.validate()

    def _on_step(self) -> bool:
        self._bar.update(self.training_env.num_envs)
        return True

    def _on_training_end(self) -> None:
        self.validate()
        self._bar.close()

    def validate(self) -> None:
        """Judge now; save the weights if they are the best so far."""
        controller = LearnerController(self.model, self._codec)  # type: ignore[arg-type]
        speedup = self._judge(controller)
        self.curve.append((self.num_timesteps, speedup))
        self.logger.record("validation/speedup_vs_plain", speedup)
        rounds = max(1, sum(controller.choices.values()))
        for choice, count in controller.choices.items():
            self.logger.record(f"validation/share_{choice}", count / rounds)
        self.logger.dump(self.num_timesteps)
        self._bar.set_postfix_str(f"speed-up {speedup:.3f}, best {max(self.best, speedup):.3f}")
        self._save("last.zip")
        if speedup > self.best:
            self.best = speedup
            self._save("best.zip")

    def _save(self, name: str) -> None:
        with written_whole(self._folder / name) as aside, aside.open("wb") as file:
            self.model.save(file)

    def load_best(self) -> None:
        """Put the best weights back into the learner."""
        self.model.set_parameters(str(self._folder / "best.zip"), device="cpu")


