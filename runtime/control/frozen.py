"""The frozen policy: one ONNX graph from observation and mask to action, on one thread.

A policy that remembers reads its memory as more inputs and gives it back as outputs named ``next_`` + input; at the
start of a stream all of it is zero.

onnxruntime opens and checks every graph. Where there are compiled kernels and the graph is a small network without a
memory, a tape (``runtime/control/tape``) then runs it: begun cold, as decisions are, that takes a fifth of the time.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation, bounds
from runtime.control.onnx_run import OnnxRun
from runtime.control.tape.block import Untaped
from runtime.control.tape.tape import Tape
from runtime.core import Decision, Outcome

LOGGER = logging.getLogger(__name__)

TRIED = 200
"""Random observations for which a tape must decide as onnxruntime does."""
TIES = 0.05
"""Share of them in which it may decide otherwise: two values of one score, told apart by rounding alone."""


class FrozenController:
    """Runs an exported policy. Inputs ``observation`` float32 (1, D) and ``mask`` bool (1, M); output int64 (1, 5).

    Any further inputs are its memory, float32.

    Args:
        path: The graph.
        n_drafts: Drafts of the zoo.
        observation_size: D.
        name: In reports.
        taped: Whether a tape may run it.

    Raises:
        UserError: If the file is not such a graph, or was made for another observation or action size.
    """

    def __init__(
        self, path: Path, n_drafts: int, observation_size: int, name: str = "policy", taped: bool = True
    ) -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        sizes = {"observation": observation_size, "mask": self._codec.offsets[-1]}
        graph = OnnxRun(path, sizes, len(self._codec.nvec))
        tape = _tape(path, graph, self._codec) if taped and not graph.remembers else None
        self._graph = graph if tape is None else tape

    @property
    def taped(self) -> bool:
        """Whether a tape runs it."""
        return isinstance(self._graph, Tape)

    def begin_stream(self) -> None:
        if isinstance(self._graph, OnnxRun):
            self._graph.forget()

    def decide(self, observation: Observation) -> Decision:
        graph = self._graph
        graph.observation[...] = observation.vector
        graph.mask[...] = observation.mask
        graph.run()
        return self._codec.decode(graph.action.tolist())

    def learn(self, outcome: Outcome) -> None: ...


def _tape(path: Path, graph: OnnxRun, codec: ActionCodec) -> Tape | None:
    """The graph as a tape; None if it cannot be one, or would decide otherwise."""
    try:
        tape = Tape(path, len(graph.observation), len(graph.mask), len(graph.action))
    except Untaped as reason:
        LOGGER.debug("%s is run by onnxruntime: no tape for %s", path, reason)
        return None
    rng, (low, high) = np.random.default_rng(0), bounds(codec.n_drafts)
    different = 0
    for number in range(TRIED):
        most = np.minimum(high, 4.0) if number % 2 else high
        observation, mask = rng.uniform(low, most), rng.random(len(graph.mask)) < 0.5
        for each in (graph, tape):
            each.observation[...] = observation
            each.mask[...] = mask | codec.first_values
            each.run()
        different += not np.array_equal(graph.action, tape.action)
    if different > TIES * TRIED:
        LOGGER.warning("%s: compiled code decides otherwise than onnxruntime, which runs it therefore", path)
        return None
    return tape
