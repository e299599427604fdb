"""A sequence whose narrow forwards are recorded by width and replayed; wide ones run as they come.

A narrow forward is a verification, a guess or a short catch-up: hundreds of small kernels that a GPU finishes sooner
than a processor can start them. A prefill, which is whatever begins a text, fills the GPU by itself; it also gives the
buffers their shapes.

The rows that a forward attends over depend on where it ends and nothing else, never on how far the buffers have grown
for an earlier text: so the same tokens are summed up in the same way every time.
"""

from __future__ import annotations

import torch

from runtime.core import GAMMAS
from runtime.engine.graphs.base import Recorder, Step
from runtime.engine.graphs.static_cache import StaticCache
from runtime.engine.graphs.width_graph import WidthGraph
from runtime.engine.kv_cache import capacity_for

WIDEST = 1 + GAMMAS[-1]
"""Most tokens of a fixed forward: the longest verification."""


class GraphRunner:
    """Implements ``Runner``.

    Args:
        step: What is run.
        device: Where it computes.
        recorder: Records narrow forwards; None = they are fixed all the same, and computed every time (on CPU).
    """

    def __init__(self, step: Step, device: torch.device, recorder: Recorder | None = None) -> None:
        self.cache = StaticCache()
        self._step, self._device, self._recorder = step, device, recorder
        self._graphs: dict[tuple[int, int], WidthGraph] = {}
        self._moves = 0

    @property
    def recorded(self) -> int:
        """Recordings in use; one for every width and window."""
        return sum(graph.recorded for graph in self._graphs.values())

    @torch.inference_mode()
    def forward(self, inputs: torch.Tensor, keep: int) -> torch.Tensor:
        width, start = inputs.shape[1], self.cache.length
        if width <= WIDEST and start > 0 and not self._gave_up:
            # The output is overwritten by whatever is replayed next: all recordings share their memory.
            rows = self._graph(inputs, start + width).forward(inputs, start)[-keep:].clone()
        else:
            rows = self._step(inputs.to(self._device), self.cache, keep)
        self.cache.advance_to(start + width)
        return rows

    @property
    def _gave_up(self) -> bool:
        return self._recorder is not None and self._recorder.failed

    def _graph(self, inputs: torch.Tensor, end: int) -> WidthGraph:
        """The graph of a forward that ends with ``end`` tokens."""
        self.cache.reserve(end)
        if self._moves != self.cache.moves:
            self._graphs.clear()
            self._moves = self.cache.moves
        key = (inputs.shape[1], capacity_for(end))
        graph = self._graphs.get(key)
        if graph is None:
            graph = WidthGraph(self._step, self.cache, inputs, key[1], self._device, self._recorder)
            self._graphs[key] = graph
        return graph
