"""The mean of a topic predictor's rows over the last tokens, by compiled code: it is part of every decision."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Window:
    """``TopicPredictor.predict``, bit for bit. What it needs stays in one place.

    Args:
        predict: The compiled function, see ``runtime/engine/native/decisions.c``.
        scores: Rows of all tokens, float32, shape (vocab, drafts).
        bias: Float32, shape (drafts,).
        most: Most tokens of a window.
    """

    def __init__(self, predict: Any, scores: Floats, bias: Floats, most: int) -> None:
        self._run, self._most = predict, most
        self._scores, self._bias = np.ascontiguousarray(scores), np.ascontiguousarray(bias)
        self._tokens, self._out = np.zeros(most, dtype=np.int64), np.zeros(len(bias), dtype=np.float32)
        self._packed = struct.Struct(f"{most}q").pack_into
        self._place = memoryview(self._tokens.data).cast("B")
        self._table = self._scores.ctypes.data, *self._scores.shape, self._tokens.ctypes.data
        self._rest = self._bias.ctypes.data, self._out.ctypes.data

    def predict(self, tokens: Sequence[int]) -> Floats:
        """Of at least one token and at most ``most``, shape (drafts,).

        Raises:
            IndexError: If a token has no row.
        """
        count = len(tokens)
        if count == self._most:
            self._packed(self._place, 0, *tokens)
        else:
            self._tokens[:count] = tokens
        if self._run(*self._table, count, *self._rest):
            raise IndexError(f"a token has no row: there are {len(self._scores)}")
        return self._out.copy()
