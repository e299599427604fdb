"""The progress bar: decisions per second, time left, the last speed-up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from agents.watching.standing import Standing


class ProgressCallback(BaseCallback):
    """Moves a bar.

    Args:
        bar: The bar.
        standing: Read for the last and best speed-up.
    """

    def __init__(self, bar: Any, standing: Standing) -> None:
        super().__init__()
        self._bar, self._standing = bar, standing

    def _on_rollout_start(self) -> None:
        standing = self._standing
        if standing.curve:
            self._bar.set_postfix_str(f"speed-up {standing.curve[-1][1]:.3f}, best {standing.best:.3f}")

    def _on_step(self) -> bool:
        self._bar.update(self.training_env.num_envs)
        return True


@contextmanager
def progress_bar(total: int, done: int, shown: bool) -> Iterator[Any]:
    """A bar over a run's decisions, of which some may be done; closed whatever happens."""
    with tqdm(total=total, initial=done, desc="training", unit="dec", unit_scale=True, disable=not shown) as bar:
        yield bar
