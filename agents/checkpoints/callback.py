"""Writes checkpoints between rollouts."""

from __future__ import annotations

from collections.abc import Callable

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from agents.checkpoints.file import Checkpoint
from agents.checkpoints.folder import CheckpointFolder
from agents.watching.standing import Standing


class CheckpointCallback(BaseCallback):
    """Writes out what was logged, then the checkpoint if one is due: nothing of the past is left in memory alone.

    Args:
        folder: Gets the checkpoints.
        capture: From the learner to its checkpoint.
        standing: Says whether training stops here.
        every: Decisions between two checkpoints; 0 = one after every rollout.
        patience: Validations without a gain after which training stops; 0 = it does not.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        capture: Callable[[BaseAlgorithm], Checkpoint],
        standing: Standing,
        every: int,
        patience: int,
    ) -> None:
        super().__init__()
        self._folder, self._capture, self._standing = folder, capture, standing
        self._every, self._patience = every, patience
        self._last: int | None = None
        self._logged = -1
        self._stopped = False

    def resume_from(self, decisions: int) -> None:
        """There is a checkpoint of this moment."""
        self._last = self._logged = decisions

    def _on_rollout_start(self) -> None:
        last, now = self._last, self.num_timesteps
        stops = self._stopped = self._standing.exhausted(self._patience)
        if last is None or (now > last and (stops or not self._every or now // self._every > last // self._every)):
            self._write()
        elif self._due_log(now):
            self._log()

    def _due_log(self, now: int) -> bool:
        return hasattr(self.model, "rollout_buffer") and now > self._logged

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if not self._stopped and self._last != self.num_timesteps:
            self._write()

    def _log(self) -> None:
        self.logger.dump(self.num_timesteps)
        self._logged = self.num_timesteps

    def _write(self) -> None:
        self._log()
        self._folder.write(self._capture(self.model))
        self._last = self.num_timesteps
