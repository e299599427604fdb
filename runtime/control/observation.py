"""The observation: what a controller sees, as named fields and as one flat float32 vector.

``FEATURES`` is the only table of features. The environment's docstring, the bundle's manifest, the normalisation in
the policy and the vector itself all come from it. The vector holds raw values in the given unit, clipped to the given
range: first all global features, then the per-draft features, draft after draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.control.action import BoolMask
from runtime.core import GAMMAS, Phase

Floats = npt.NDArray[np.float32]


class Feature(NamedTuple):
    """One feature: its unit, its range, and the scale the policy divides it by."""

    name: str
    unit: str
    low: float
    high: float
    scale: float
    meaning: str


GLOBAL_FEATURES: tuple[Feature, ...] = (
    Feature("phase_admit", "flag", 0, 1, 1, "the decision is about admitting a request"),
    Feature("phase_decode", "flag", 0, 1, 1, "the decision is about a round"),
    Feature("phase_complete", "flag", 0, 1, 1, "the decision is about a finished request's KV"),
    Feature("prompt_tokens", "tokens", 0, 8192, 512, "length of the prompt"),
    Feature("usable_prefix_tokens", "tokens", 0, 8192, 512, "stored prefix usable for the prompt"),
    Feature("usable_share", "fraction", 0, 1, 1, "usable stored prefix / prompt"),
    Feature("usable_disk_tokens", "tokens", 0, 8192, 512, "of the usable prefix, tokens to be read from disk first"),
    Feature("context_tokens", "tokens", 0, 8192, 512, "prompt and text so far"),
    Feature("generated_tokens", "tokens", 0, 4096, 128, "text so far"),
    Feature("room_tokens", "tokens", 0, 4096, 128, "tokens that may still be committed"),
    Feature("last_drafted", "tokens", 0, 8, 8, "tokens verified in the last round"),
    Feature("last_accepted", "tokens", 0, 8, 8, "tokens accepted in the last round"),
    Feature("free_share", "fraction", -1, 1, 1, "free bytes / budget"),
    Feature("kv_share", "fraction", 0, 1, 1, "bytes of stored KV / budget"),
    Feature("retain_share", "fraction", 0, 4, 1, "bytes of this request's KV / budget"),
    Feature("rounds_since_decision", "rounds", 0, 64, 8, "rounds since prefetching was last decided"),
    Feature("may_prefetch", "flag", 0, 1, 1, "prefetching may be decided now"),
    Feature("loads_in_flight", "loads", 0, 8, 2, "drafts on their way"),
    Feature("hit_share", "fraction", 0, 1, 1, "recent share of a prompt that was found stored"),
    Feature(
        "again_cost", "plain steps", 0, 256, 8, "computing again: the usable prefix (admission), else all the text"
    ),
    *(
        Feature(f"verify_ratio_{gamma}", "plain steps", 0, 64, 4, f"verify forward of {gamma} guesses")
        for gamma in GAMMAS
    ),
)

DRAFT_FEATURES: tuple[Feature, ...] = (
    Feature("resident", "flag", 0, 1, 1, "usable now"),
    Feature("loading_fraction", "fraction", 0, 1, 1, "part of a running load that is done"),
    Feature("load_left", "plain steps", 0, 256, 8, "load time left, 0 if resident"),
    Feature("acceptance", "probability", 0, 1, 1, "recent share of right guesses"),
    Feature("staleness", "tokens", 0, 1024, 64, "tokens committed since the last evidence"),
    Feature("catch_up_tokens", "tokens", 0, 8192, 256, "committed tokens the draft has not absorbed"),
    Feature("catch_up_cost", "plain steps", 0, 64, 2, "cost of absorbing them"),
    Feature("predicted", "probability", 0, 1, 1, "topic predictor's acceptance over the next rounds"),
    Feature("next_shift", "probability", -1, 1, 0.25, "how much likelier than usual the next guess is, by last token"),
    Feature("confidence", "probability", 0, 1, 1, "last first guess's calibrated probability (lookup: the next one's)"),
    Feature("step_ratio", "plain steps", 0, 16, 0.25, "cost of one guess"),
    Feature("size_share", "fraction", 0, 4, 1, "bytes / budget"),
    Feature("weightless", "flag", 0, 1, 1, "needs no weights and no load: look-up"),
)

G, P = len(GLOBAL_FEATURES), len(DRAFT_FEATURES)
GLOBAL_INDEX = {feature.name: i for i, feature in enumerate(GLOBAL_FEATURES)}
DRAFT_INDEX = {feature.name: i for i, feature in enumerate(DRAFT_FEATURES)}


@dataclass(frozen=True, slots=True)
class Observation:
    """What a controller sees before a decision.

    Attributes:
        phase: What is to be decided.
        vector: All features in table order, float32, shape (G + drafts * P,); see ``FEATURES``.
        mask: Legal values of every action dimension, flat, bool, shape (sum(nvec),).
    """

    phase: Phase
    vector: Floats
    mask: BoolMask

    def value(self, name: str) -> float:
        """A global feature by name."""
        return float(self.vector[GLOBAL_INDEX[name]])

    def of_draft(self, name: str, draft: int) -> float:
        """A per-draft feature of one draft, by name."""
        return float(self.vector[G + draft * P + DRAFT_INDEX[name]])

    def per_draft(self, name: str) -> Floats:
        """A per-draft feature by name, shape (drafts,); a view."""
        column: Floats = self.vector[G:].reshape(-1, P)[:, DRAFT_INDEX[name]]
        return column


def bounds(n_drafts: int) -> tuple[Floats, Floats]:
    """Lowest and highest value of every entry of the vector."""
    rows = [*GLOBAL_FEATURES, *(DRAFT_FEATURES * n_drafts)]
    return (np.array([f.low for f in rows], dtype=np.float32), np.array([f.high for f in rows], dtype=np.float32))


def scales(n_drafts: int) -> Floats:
    """What the policy divides every entry of the vector by."""
    return np.array([f.scale for f in (*GLOBAL_FEATURES, *(DRAFT_FEATURES * n_drafts))], dtype=np.float32)


def feature_names(draft_names: tuple[str, ...]) -> tuple[str, ...]:
    """Name of every entry of the vector; per-draft ones as ``draft.feature``."""
    return (
        *(f.name for f in GLOBAL_FEATURES),
        *(f"{draft}.{f.name}" for draft in draft_names for f in DRAFT_FEATURES),
    )
