"""The topic predictor: which draft will do well next, from the tokens alone.

MemSpec's light prediction engine: mean of the target's own input embeddings over the last tokens, then one linear
layer to the expected acceptance of every draft. Both steps are linear, so they fold into one score per token and
draft: predicting is a mean over rows of a small table, and no embedding is needed on the device.

Beside it, and not MemSpec's: what the very last token says about the very next guess. In the middle of a word every
draft knows how to go on, behind a full stop none does. That is a second table, read at one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from runtime.control.window import Window
from runtime.engine.native.decisions import function
from runtime.errors import UserError
from runtime.files import written_whole

Floats = npt.NDArray[np.float32]
TOPIC_SCHEMA = "1"
"""A file of an earlier version has no ``shift``: it says nothing about single tokens."""


@dataclass(frozen=True)
class TopicPredictor:
    """Expected acceptance of every draft over the next rounds.

    Attributes:
        scores: Share of a token in the prediction, float32, shape (vocab, drafts).
        bias: Float32, shape (drafts,).
        window: How many last tokens are averaged.
        drafts: Names of the drafts, in column order.
        shift: How much more often (in probability) the guess behind a token is right than usual, float32, shape
            (vocab, drafts); 0 for tokens that were not seen.
    """

    scores: Floats
    bias: Floats
    window: int
    drafts: tuple[str, ...]
    shift: Floats

    def predict(self, tokens: Sequence[int]) -> Floats:
        """Prediction behind the last of ``tokens`` (at least one), shape (drafts,), within 0 and 1."""
        last = tokens[-self.window :]
        if self._compiled is not None:
            return self._compiled.predict(last)
        rows = self.scores[np.asarray(last, dtype=np.int64)]
        predicted: Floats = (self.bias + np.add.reduce(rows, 0) / len(rows)).clip(0.0, 1.0)
        return predicted.astype(np.float32, copy=False)

    @cached_property
    def _compiled(self) -> Window | None:
        """The same by compiled code, if there is any: this is part of every decision, and numpy is long in starting."""
        run = function("predict")
        return None if run is None else Window(run, self.scores, self.bias, self.window)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: compiled code stays where it is."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def predict_all(self, tokens: Sequence[int], start: int) -> Floats:
        """Predictions behind ``tokens[:n]`` for n = start … len(tokens), shape (len(tokens) - start + 1, drafts)."""
        rows = self.scores[np.asarray(tokens, dtype=np.int64)].astype(np.float64)
        sums = np.concatenate([np.zeros((1, rows.shape[1])), rows.cumsum(0)])
        ends = np.arange(start, len(tokens) + 1)
        begins = np.maximum(ends - self.window, 0)
        means = (sums[ends] - sums[begins]) / np.maximum(ends - begins, 1)[:, None]
        predicted: Floats = np.clip(self.bias + means, 0.0, 1.0).astype(np.float32)
        return predicted

    def next_shift(self, token: int) -> Floats:
        """What ``token`` as the last one says about the next guess of every draft, shape (drafts,)."""
        row: Floats = self.shift[token]
        return row

    def save(self, path: Path) -> None:
        """Write as safetensors (tables in fp16), aside first."""
        metadata = {"schema": TOPIC_SCHEMA, "window": str(self.window), "drafts": ",".join(self.drafts)}
        tables = {  # safetensors writes memory as it lies, whatever the strides
            "scores": np.ascontiguousarray(self.scores, dtype=np.float16),
            "shift": np.ascontiguousarray(self.shift, dtype=np.float16),
        }
        with written_whole(path) as aside:
            save_file({**tables, "bias": self.bias}, aside, metadata=metadata)

    @classmethod
    def load(cls, path: Path, drafts: tuple[str, ...] | None = None) -> TopicPredictor:
        """Read a predictor, of all its drafts or of those named, in that order.

        Raises:
            UserError: If the file is missing, corrupt, of another schema or lacks a draft.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                scores, bias = file.get_tensor("scores"), file.get_tensor("bias")
                known = "shift" in file.keys()
                shift = file.get_tensor("shift") if known else np.zeros_like(scores)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: not a readable topic predictor ({error}): make it again") from None
        if metadata.get("schema") != TOPIC_SCHEMA:
            raise UserError(
                f"{path}: expected a topic predictor of schema {TOPIC_SCHEMA}, got {metadata.get('schema')}"
            )
        names = tuple(metadata["drafts"].split(","))
        chosen = names if drafts is None else drafts
        if not set(chosen) <= set(names):
            raise UserError(
                f"{path}: expected a topic predictor of the drafts {', '.join(chosen)}, got one of the drafts "
                f"{', '.join(names)}: build the zoo again"
            )
        columns = [names.index(name) for name in chosen]
        tables = [table[:, columns].astype(np.float32) for table in (scores, shift)]
        return cls(tables[0], bias[columns].astype(np.float32), int(metadata["window"]), chosen, tables[1])
