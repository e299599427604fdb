"""A policy's graph run by onnxruntime, on one thread, with inputs and outputs that stay in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import UserError


class OnnxRun:
    """Runs a graph with the inputs ``observation`` and ``mask`` and the output ``action``.

    Any further inputs are its memory: it gives it back as outputs named ``next_`` + input.

    Args:
        path: The ONNX file.
        sizes: Numbers of ``observation`` and ``mask``.
        dimensions: Numbers of an action.

    Attributes:
        observation: Where the next observation is written, float32, shape (observation size,).
        mask: Where its mask is written, bool, shape (mask size,).
        action: Where ``run`` leaves the action, int64, shape (dimensions,).
        remembers: Whether the graph has a memory.

    Raises:
        UserError: If the file is not such a graph, or was made for other sizes.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int], dimensions: int) -> None:
        self._session = _open(path)
        inputs = {value.name: value.shape for value in self._session.get_inputs()}
        got = {name: shape[-1] for name, shape in inputs.items() if name in sizes}
        if got != sizes:
            raise UserError(
                f"{path}: the policy reads {got}, this zoo and runtime give {dict(sizes)}: use the bundle made for them"
            )
        memory = [(name, shape) for name, shape in inputs.items() if name not in sizes]
        given = {value.name for value in self._session.get_outputs()}
        if missing := {"action", *(f"next_{name}" for name, _ in memory)} - given:
            raise UserError(f"{path}: the policy gives no {', '.join(sorted(missing))}: export the bundle again")
        self.remembers = bool(memory)
        self.observation: npt.NDArray[np.float32] = np.zeros(sizes["observation"], dtype=np.float32)
        self.mask: npt.NDArray[np.bool_] = np.zeros(sizes["mask"], dtype=np.bool_)
        self.action: npt.NDArray[np.int64] = np.zeros(dimensions, dtype=np.int64)
        self._memory = [(np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _, shape in memory]
        self._places = self._session.io_binding()
        self._bind("observation", self.observation[None])
        self._bind("mask", self.mask[None])
        self._bind("action", self.action[None], output=True)
        for (name, _), (before, after) in zip(memory, self._memory, strict=True):
            self._bind(name, before)
            self._bind(f"next_{name}", after, output=True)

    def _bind(self, name: str, place: npt.NDArray[Any], output: bool = False) -> None:
        bind = self._places.bind_output if output else self._places.bind_input
        bind(name, "cpu", 0, place.dtype.type, place.shape, place.ctypes.data)

    def forget(self) -> None:
        """Empty the memory."""
        for before, _ in self._memory:
            before.fill(0.0)

    def run(self) -> None:
        """From ``observation`` and ``mask`` to ``action``."""
        self._session.run_with_iobinding(self._places)
        for before, after in self._memory:
            before[...] = after


def _open(path: Path) -> Any:
    import onnxruntime  # here, because who reads about a bundle needs none of it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class of its own for every fault
        raise UserError(f"{path}: not a readable policy ({error}): export the bundle again") from None
