"""A graph as a tape: ready to be run, one call of compiled code for all of it.

Between two decisions the models' forwards take the caches, and onnxruntime's way into a run and out of it then costs as
much as a whole small network. A tape is little code over one block of memory: nothing is allocated or looked up. The
interpreter's lock is kept meanwhile: a decision is over before another thread could have made use of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.control.tape.block import Block, Floats, Kind, Place, Untaped
from runtime.control.tape.onnx_file import UnreadableGraph, read_graph
from runtime.control.tape.tracing import Tracer
from runtime.engine.native.decisions import function

SPARE = 1 << 18
"""Numbers that a tape may need beside the constants of its graph."""


class Tape:
    """Runs a graph with the inputs ``observation`` and ``mask`` and the output ``action``.

    Args:
        path: The ONNX file.
        observation_size: Numbers of an observation.
        mask_size: Values of a mask.
        dimensions: Numbers of an action.

    Attributes:
        observation: Where the next observation is written, float32, shape (observation_size,).
        mask: Where its mask is written, bool, shape (mask_size,).
        action: Where ``run`` leaves the action, int64, shape (dimensions,).

    Raises:
        Untaped: If it cannot be run this way: the graph does what a tape cannot, or there is no compiled code.
    """

    def __init__(self, path: Path, observation_size: int, mask_size: int, dimensions: int) -> None:
        run = function("run_tape")
        if run is None:
            raise Untaped("there are no compiled kernels")
        try:
            data = path.read_bytes()
            graph = read_graph(data)
        except (OSError, UnreadableGraph) as error:
            raise Untaped(str(error)) from error
        block = Block(2 * len(data) // 4 + SPARE)
        observation, truths = block.take((1, observation_size)), block.take((-(-mask_size // 4),))
        mask = block.take((1, mask_size))
        block.add(Kind.TRUTHS, (1, 1, 1, mask_size), mask, Place(block.at(truths)))
        result = Tracer(graph, block, {"observation": observation, "mask": mask}).result("action")
        if result.shape != (1, dimensions):
            raise Untaped(f"an action of shape {result.shape}")
        action = block.take((2 * dimensions,))
        walk = (0, 0, 0, result.strides[1] // result.itemsize)
        block.add(Kind.WHOLE, (1, 1, 1, dimensions), action, Place(block.at(result), walk))
        self.observation: Floats = observation[0]
        self.mask: npt.NDArray[np.bool_] = truths.view(np.bool_)[:mask_size]
        self.action: npt.NDArray[np.int64] = action.view(np.int64)
        self.steps = np.array(block.steps, dtype=np.int32)
        self._block = block
        self._run = run
        self._given = self.steps.ctypes.data, len(self.steps), block.memory.ctypes.data

    def run(self) -> None:
        """From ``observation`` and ``mask`` to ``action``."""
        self._run(*self._given)
