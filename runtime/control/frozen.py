"""The frozen policy: one ONNX graph from observation and mask to action, on one thread.

A policy that remembers reads its memory as more inputs and gives it back as outputs named ``next_`` + input; at the
start of a stream all of it is zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.core import Decision, Outcome
from runtime.errors import UserError


class FrozenController:
    """Runs an exported policy. Inputs ``observation`` float32 (1, D) and ``mask`` bool (1, M); output int64 (1, 5).

    Any further inputs are its memory, float32.

    Raises:
        UserError: If the file is not such a graph, or was made for another observation or action size.
    """

    def __init__(self, path: Path, n_drafts: int, observation_size: int, name: str = "policy") -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._session = _open(path)
        expected = {"observation": observation_size, "mask": self._codec.offsets[-1]}
        inputs = {value.name: value.shape for value in self._session.get_inputs()}
        got = {name: shape[-1] for name, shape in inputs.items() if name in expected}
        if got != expected:
            raise UserError(
                f"{path}: the policy reads {got}, this zoo and runtime give {expected}: use the bundle made for them"
            )
        memory = [(name, shape) for name, shape in inputs.items() if name not in expected]
        given = {value.name for value in self._session.get_outputs()}
        if missing := {"action", *(f"next_{name}" for name, _ in memory)} - given:
            raise UserError(f"{path}: the policy gives no {', '.join(sorted(missing))}: export the bundle again")
        # Places that graph and controller share: nothing is made or looked up by name in a decision.
        self._observation = np.zeros((1, observation_size), dtype=np.float32)
        self._mask = np.zeros((1, self._codec.offsets[-1]), dtype=np.bool_)
        self._action = np.zeros((1, len(self._codec.nvec)), dtype=np.int64)
        self._memory = [(np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _, shape in memory]
        self._places = self._session.io_binding()
        self._bind("observation", self._observation)
        self._bind("mask", self._mask)
        self._bind("action", self._action, output=True)
        for (name, _), (before, after) in zip(memory, self._memory, strict=True):
            self._bind(name, before)
            self._bind(f"next_{name}", after, output=True)

    def _bind(self, name: str, place: npt.NDArray[Any], output: bool = False) -> None:
        bind = self._places.bind_output if output else self._places.bind_input
        bind(name, "cpu", 0, place.dtype.type, place.shape, place.ctypes.data)

    def begin_stream(self) -> None:
        for before, _ in self._memory:
            before.fill(0.0)

    def decide(self, observation: Observation) -> Decision:
        self._observation[0] = observation.vector
        self._mask[0] = observation.mask
        self._session.run_with_iobinding(self._places)
        for before, after in self._memory:
            before[...] = after
        return self._codec.decode(self._action[0].tolist())

    def learn(self, outcome: Outcome) -> None: ...


def _open(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class of its own for every fault
        raise UserError(f"{path}: not a readable policy ({error}): export the bundle again") from None
