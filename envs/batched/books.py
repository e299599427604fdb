"""What streams counted: one episode's ``Counters``, and sums over all streams for logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.batched.kernel import columns as col
from envs.batched.kernel.tables import Doubles, Longs, Streams
from runtime.core import Counters

WHOLE = {
    "rounds": col.ROUNDS,
    "drafted": col.DRAFTED,
    "accepted": col.ACCEPTED,
    "corrections": col.CORRECTIONS,
    "admitted": col.ADMITTED,
    "committed": col.COMMITTED,
    "loads": col.LOADS,
    "wasted_loads": col.WASTED,
    "evictions": col.EVICTIONS,
    "kv_hit_tokens": col.KV_HIT,
    "kv_retained_bytes": col.KV_RETAINED,
    "prefill_tokens": col.PREFILL,
    "illegal": col.ILLEGAL,
    "peak_budget_bytes": col.PEAK,
}
REAL = {"seconds": col.SECONDS, "stall_s": col.STALL, "kv_saved_s": col.KV_SAVED}
SUMMED = (*(name for name in WHOLE if name != "peak_budget_bytes"), *REAL, "plain_seconds")
"""What ``Totals`` gives."""


def counters(streams: Streams, index: int) -> Counters:
    """What one stream's session would have counted in its episode."""
    whole, real = streams.whole[index], streams.real[index]
    counted: dict[str, Any] = {name: int(whole[column]) for name, column in WHOLE.items()}
    counted |= {name: float(real[column]) for name, column in REAL.items()}
    return Counters(**counted, ttft_s=streams.first_token_s[index, : whole[col.ADMITTED]].tolist())


@dataclass
class Totals:
    """Sums over streams that outlive their episodes.

    Attributes:
        whole: Of episodes that have ended, shape (WHOLE,).
        real: The same of floats, shape (REAL,).
        told: What was told before, by name.
    """

    whole: Longs
    real: Doubles
    told: dict[str, float]

    @classmethod
    def none(cls) -> Totals:
        """Nothing counted."""
        return cls(np.zeros(col.WHOLE, dtype=np.int64), np.zeros(col.REAL), {})

    def end(self, streams: Streams, indices: Longs) -> None:
        """Take in episodes that have ended."""
        self.whole += streams.whole[indices].sum(0)
        self.real += streams.real[indices].sum(0)

    def since_last_asked(self, streams: Streams) -> dict[str, float]:
        """By name of ``SUMMED``: what all streams did since the last call. Times in seconds."""
        whole, real = self.whole + streams.whole.sum(0), self.real + streams.real.sum(0)
        now = {name: float(whole[WHOLE[name]]) for name in SUMMED if name in WHOLE}
        now |= {name: float(real[column]) for name, column in {**REAL, "plain_seconds": col.PLAIN_SECONDS}.items()}
        told, self.told = self.told, now
        return {name: value - told.get(name, 0.0) for name, value in now.items()}
