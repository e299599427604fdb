"""How a run stands: the validation curve, the best policy so far, and whether it is worth going on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Standing:
    """Part of every checkpoint.

    Attributes:
        curve: (decisions, speed-up over plain on the validation streams), in order.
        best: Best speed-up so far; None before the first validation.
        best_weights: Weights that reached it, as a tree.
        reference: Speed-up that the next gain is measured from.
        stale: Validations since the last gain.
    """

    curve: list[tuple[int, float]] = field(default_factory=list)
    best: float | None = None
    best_weights: dict[str, Any] | None = None
    reference: float | None = None
    stale: int = 0

    def note(self, decisions: int, speedup: float, min_gain: float) -> bool:
        """Add a validation.

        Args:
            decisions: Decisions so far.
            speedup: Over plain.
            min_gain: A speed-up counts as a gain if it passes the last gain's by more than this.

        Returns:
            Whether it is the best so far.
        """
        self.curve.append((decisions, speedup))
        if self.reference is None or speedup > self.reference + min_gain:
            self.reference, self.stale = speedup, 0
        else:
            self.stale += 1
        better = self.best is None or speedup > self.best
        self.best = speedup if better else self.best
        return better

    def exhausted(self, patience: int) -> bool:
        """Whether ``patience`` validations in a row brought no gain; never with 0."""
        return 0 < patience <= self.stale

    def state_dict(self) -> dict[str, Any]:
        """As a tree."""
        return dict(vars(self))

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Standing:
        """From a tree."""
        return cls(**{**state, "curve": [(int(decisions), speedup) for decisions, speedup in state["curve"]]})
