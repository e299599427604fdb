"""Validation: the policy as it would be deployed, judged on streams that training does not see."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Figure as LoggedFigure

from agents.checkpoints.generators import untouched_random
from agents.checkpoints.learner import weights
from agents.export import export_policy
from agents.report.gantt import gantt
from agents.serving import serve
from agents.timeline import record_timeline
from agents.watching.events import METRIC
from agents.watching.standing import Standing
from envs.world import ReplayWorld
from runtime.control.action import ActionCodec
from runtime.control.base import Controller
from runtime.control.frozen import FrozenController
from runtime.control.observation import Observation
from runtime.control.static import plain_controller
from runtime.core import Decision, Outcome, Phase

VALIDATION_SEED = 10_000
"""Validation streams are drawn with this plus the run's seed, training streams with the run's seed."""


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


class Judge:
    """Streams of the training prompts, and what plain decoding takes for them.

    Args:
        world: Replay world of the training split.
        streams: How many streams.
        seed: The run's.
    """

    def __init__(self, world: ReplayWorld, streams: int, seed: int) -> None:
        self._world = world
        self._streams = world.streams(VALIDATION_SEED + seed, streams)
        self._plain_s = self._seconds(plain_controller(len(world.drafts)))

    def _seconds(self, controller: Controller) -> float:
        world = self._world
        return sum(serve(controller, stream, world.session(), controller.name)[0].seconds for stream in self._streams)

    def speedup(self, controller: Controller) -> float:
        """Of a controller over plain decoding, over all streams."""
        return self._plain_s / self._seconds(controller)

    def picture(self, controller: Controller) -> Figure:
        """The first stream under a controller: residency and choices."""
        stream = self._streams[0]
        timeline = record_timeline(controller, stream, self._world.session(), controller.name)
        return gantt([timeline], [item.request.domain for item in stream])


class ValidationCallback(BaseCallback):
    """Judges the policy before the first rollout, then at regular distances, and at the end; keeps the best weights.

    The learner is left as it was: the exported graph is judged (masks and normalisation are inside it), on sessions of
    its own, and random generators are put back.

    Args:
        judge: Judges.
        codec: The action codec.
        standing: Gets curve and best weights.
        every: Decisions between two validations.
        patience: Validations without a gain after which training stops; 0 = it does not.
        min_gain: Speed-up that counts as a gain.
    """

    def __init__(
        self, judge: Judge, codec: ActionCodec, standing: Standing, every: int, patience: int = 0, min_gain: float = 0.0
    ) -> None:
        super().__init__()
        self._judge, self._codec, self._standing = judge, codec, standing
        self._every, self._patience, self._min_gain = every, patience, min_gain

    def _on_rollout_start(self) -> None:
        curve = self._standing.curve
        if not curve or self.num_timesteps // self._every > curve[-1][0] // self._every:
            self.validate()

    def _on_step(self) -> bool:
        return not self._standing.exhausted(self._patience)

    def _on_training_end(self) -> None:
        curve = self._standing.curve
        if not self._standing.exhausted(self._patience) and (not curve or curve[-1][0] < self.num_timesteps):
            self.validate()

    def validate(self) -> None:
        """Judge now; keep the weights if they are the best so far."""
        began_s = time.perf_counter()
        with untouched_random(), TemporaryDirectory() as folder:
            controller = CountingController(frozen_policy(self.model.policy, self._codec, Path(folder)))
            speedup = self._judge.speedup(controller)
            picture = self._judge.picture(controller)
        if self._standing.note(self.num_timesteps, speedup, self._min_gain):
            self._standing.best_weights = weights(self.model)
        self.logger.record(METRIC, speedup)
        self.logger.record("validation/best", self._standing.best)
        rounds = max(1, sum(controller.choices.values()))
        for choice, count in controller.choices.items():
            self.logger.record(f"validation/share_{choice}", count / rounds)
        self.logger.record("validation/one_stream", LoggedFigure(picture, close=False))
        self.logger.record("time/validation_s", time.perf_counter() - began_s)


def frozen_policy(policy: Any, codec: ActionCodec, folder: Path) -> FrozenController:
    """The policy as it would be deployed now; the graph is left in ``folder``."""
    graph, size = folder / "policy.onnx", int(policy.observation_space.shape[0])
    export_policy(policy, codec, size, graph)
    return FrozenController(graph, codec.n_drafts, size)
