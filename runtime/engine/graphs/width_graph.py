"""One width of fixed forwards: tensors for its inputs that stay where they are, and its recording once it has paid."""

from __future__ import annotations

import torch

from runtime.engine.graphs.base import Recorder, Replay, Step
from runtime.engine.graphs.static_cache import Fixed, StaticCache

USES_BEFORE = 1
"""Forwards of a width before it is recorded: recording takes the time of several, and some widths hardly come up."""


class WidthGraph:
    """Fixed forwards of one width over one window.

    Args:
        step: What is run.
        cache: Behind what; its buffers may not move as long as this is used.
        like: Inputs of this width: shape and dtype count.
        window: Rows of the cache that are attended over.
        device: Where it computes.
        recorder: Records; None = every forward is computed anew, from the same tensors.
    """

    def __init__(
        self,
        step: Step,
        cache: StaticCache,
        like: torch.Tensor,
        window: int,
        device: torch.device,
        recorder: Recorder | None,
    ) -> None:
        self._step, self._cache, self._window, self._recorder = step, cache, window, recorder
        self._inputs = torch.empty_like(like, device=device)
        self._start = torch.zeros((), dtype=torch.long, device=device)
        self._offsets = torch.arange(like.shape[1], device=device)
        self._replay: Replay | None = None
        self._uses = 0

    @property
    def recorded(self) -> bool:
        """Whether forwards are replayed."""
        return self._replay is not None

    def forward(self, inputs: torch.Tensor, start: int) -> torch.Tensor:
        """Forward tokens behind ``start`` others. The cache's length is left to the caller.

        Args:
            inputs: Shape and dtype as those of ``like``, on any device.
            start: Tokens held.

        Returns:
            Float32 logits, shape (n, V), good until the next forward of this or another width.
        """
        # From pageable memory a copy returns when the numbers are out of it, so nothing here is overwritten too early.
        self._inputs.copy_(inputs, non_blocking=True)
        self._start.fill_(start)
        self._uses += 1
        if self._replay is None and self._recorder is not None and self._uses > USES_BEFORE:
            self._replay = self._recorder.record(self._compute)
        return self._compute() if self._replay is None else self._replay()

    def _compute(self) -> torch.Tensor:
        with self._cache.fixed(Fixed(self._start, self._start + self._offsets, self._window)):
            return self._step(self._inputs, self._cache, len(self._offsets))
