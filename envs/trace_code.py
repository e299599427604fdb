"""Confidences as 16-bit codes on a logit scale: fine where a decision hangs on them, at 0 and at 1 too.

The scale runs from logit -12 to 14 in 65,535 steps, so a probability is off by at most 0.0001 and a code is an index
into a table of calibrated probabilities (``calibrated_table``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LOW, HIGH, STEPS = -12.0, 14.0, 65535
Codes = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float64]


def _logit(code: npt.ArrayLike) -> Floats:
    return LOW + np.asarray(code, dtype=np.float64) * ((HIGH - LOW) / STEPS)


def _sigmoid(logit: Floats) -> Floats:
    result: Floats = 1.0 / (1.0 + np.exp(-logit))
    return result


def encode(confidence: npt.ArrayLike) -> Codes:
    """Probabilities, any shape, to codes of the same shape."""
    p = np.asarray(confidence, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logit = np.log(p) - np.log1p(-p)
    codes: Codes = np.round((np.clip(logit, LOW, HIGH) - LOW) * (STEPS / (HIGH - LOW))).astype(np.uint16)
    return codes


def decode(codes: Codes) -> Floats:
    """Codes to probabilities of the same shape."""
    return _sigmoid(_logit(codes))


def calibrated_table(slope: float, offset: float) -> list[float]:
    """Calibrated probability ``sigmoid(slope * logit + offset)`` of every code."""
    table: list[float] = _sigmoid(slope * _logit(np.arange(STEPS + 1)) + offset).tolist()
    return table
