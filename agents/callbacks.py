"""What happens while PPO learns: validation, the best policy kept, checkpoints, progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from agents.export import export_policy
from runtime.control.action import ActionCodec
from runtime.control.base import Controller
from runtime.control.frozen import FrozenController
from runtime.control.observation import Observation
from runtime.core import Decision, Outcome, Phase
from runtime.files import written_whole


class CountingController:
    """Passes decisions through and counts the kinds of rounds."""

    def __init__(self, inner: Controller) -> None:
        self.name = inner.name
        self._inner = inner
        self.choices: Counter[str] = Counter()

    def begin_stream(self) -> None:
        self._inner.begin_stream()

    def decide(self, observation: Observation) -> Decision:
        decision = self._inner.decide(observation)
        if observation.phase is Phase.DECODE:
            self.choices["plain" if decision.draft is None else f"gamma_{decision.gamma}"] += 1
        return decision

    def learn(self, outcome: Outcome) -> None:
        self._inner.learn(outcome)


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
        judge: Callable[[Controller], float],
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
        with TemporaryDirectory() as folder:  # judged as it will be deployed
            graph, size = Path(folder) / "policy.onnx", len(self.model.observation_space.low)  # type: ignore[attr-defined]
            export_policy(self.model.policy, self._codec, size, graph)
            controller = CountingController(FrozenController(graph, self._codec.n_drafts, size))
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
