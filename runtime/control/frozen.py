"""The frozen policy: one ONNX graph from observation and mask to action, on one thread.

A policy that remembers reads its memory as more inputs and gives it back as outputs named ``next_`` + input; at the
start of a stream all of it is zero.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
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
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a class of its own for every fault
            raise UserError(f"{path}: not a readable policy ({error}): export the bundle again") from None
        expected = {"observation": observation_size, "mask": self._codec.offsets[-1]}
        inputs = {value.name: value.shape for value in self._session.get_inputs()}
        got = {name: shape[-1] for name, shape in inputs.items() if name in expected}
        if got != expected:
            raise UserError(
                f"{path}: the policy reads {got}, this zoo and runtime give {expected}: use the bundle made for them"
            )

        self._blank = {
            name: np.zeros(shape, dtype=np.float32) for name, shape in inputs.items() if name not in expected
        }
        self._outputs = ["action", *(f"next_{name}" for name in self._blank)]
        self._memory = self._blank

    def begin_stream(self) -> None:
        self._memory = self._blank

    def decide(self, observation: Observation) -> Decision:
        feed = {"observation": observation.vector[None], "mask": observation.mask[None], **self._memory}
        action, *memory = self._session.run(self._outputs, feed)
        self._memory = dict(zip(self._blank, memory, strict=True))
        return self._codec.decode(action[0])

    def learn(self, outcome: Outcome) -> None: ...
