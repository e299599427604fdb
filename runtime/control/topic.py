"""The topic predictor: which draft will do well next, from the tokens alone.

MemSpec's light prediction engine: mean of the target's own input embeddings over the last tokens, then one linear
layer to the expected acceptance of every draft. Both steps are linear, so they fold into one score per token and
draft: predicting is a mean over rows of a small table, and no embedding is needed on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from runtime.errors import UserError
from runtime.files import written_whole

Floats = npt.NDArray[np.float32]
TOPIC_SCHEMA = "1"


@dataclass(frozen=True)
class TopicPredictor:
    """Expected acceptance of every draft over the next rounds.

    Attributes:
        scores: Share of a token in the prediction, float32, shape (vocab, drafts).
        bias: Float32, shape (drafts,).
        window: How many last tokens are averaged.
        drafts: Names of the drafts, in column order.
    """

    scores: Floats
    bias: Floats
    window: int
    drafts: tuple[str, ...]

    def predict(self, tokens: Sequence[int]) -> Floats:
        """Prediction behind the last of ``tokens`` (at least one), shape (drafts,), within 0 and 1."""
        rows = self.scores[np.asarray(tokens[-self.window :], dtype=np.int64)]
        predicted: Floats = np.clip(self.bias + rows.mean(0), 0.0, 1.0).astype(np.float32)
        return predicted

    def predict_all(self, tokens: Sequence[int], start: int) -> Floats:
        """Predictions behind ``tokens[:n]`` for n = start … len(tokens), shape (len(tokens) - start + 1, drafts)."""
        rows = self.scores[np.asarray(tokens, dtype=np.int64)].astype(np.float64)
        sums = np.concatenate([np.zeros((1, rows.shape[1])), rows.cumsum(0)])
        ends = np.arange(start, len(tokens) + 1)
        begins = np.maximum(ends - self.window, 0)
        means = (sums[ends] - sums[begins]) / np.maximum(ends - begins, 1)[:, None]
        predicted: Floats = np.clip(self.bias + means, 0.0, 1.0).astype(np.float32)
        return predicted

    def save(self, path: Path) -> None:
        """Write as safetensors (scores in fp16), aside first."""
        metadata = {"schema": TOPIC_SCHEMA, "window": str(self.window), "drafts": ",".join(self.drafts)}
        with written_whole(path) as aside:
            save_file({"scores": self.scores.astype(np.float16), "bias": self.bias}, aside, metadata=metadata)

    @classmethod
    def load(cls, path: Path, drafts: tuple[str, ...] | None = None) -> TopicPredictor:
        """Read a predictor; ``drafts`` are those it must be of, None = any.

        Raises:
            UserError: If the file is missing, corrupt, of another schema or of other drafts.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                scores, bias = file.get_tensor("scores"), file.get_tensor("bias")
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: not a readable topic predictor ({error}): make it again") from None
        if metadata.get("schema") != TOPIC_SCHEMA:
            raise UserError(
                f"{path}: expected a topic predictor of schema {TOPIC_SCHEMA}, got {metadata.get('schema')}"
            )
        names = tuple(metadata["drafts"].split(","))
        if drafts is not None and names != drafts:
            raise UserError(
                f"{path}: expected a topic predictor of the drafts {', '.join(drafts)}, got one of the drafts "
                f"{', '.join(names)}: build the zoo again"
            )
        return cls(scores.astype(np.float32), bias.astype(np.float32), int(metadata["window"]), names)
