"""What a controller would do with one draft at every acceptance and context: made-up observations, real answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.control.action import ActionCodec, BoolMask
from runtime.control.base import Controller
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, Floats, G, Observation, P, bounds
from runtime.core import GAMMAS, Phase

ACCEPTANCES = tuple(float(value) for value in np.linspace(0.0, 1.0, 41))
CONTEXTS = tuple(range(64, 1025, 64))
ROOM_TOKENS = 64.0
"""Room left in every question: enough that the end of the text limits no length."""
LAST_DRAFTED = 4


@dataclass(frozen=True)
class DecisionMap:
    """Draft lengths that a controller chose.

    Attributes:
        controller: Name in reports.
        draft: Index of the draft that was asked about.
        acceptances: Rows of the grid.
        contexts: Columns of the grid, in tokens.
        gammas: Choice by row and column; 0 = plain.
    """

    controller: str
    draft: int
    acceptances: tuple[float, ...]
    contexts: tuple[int, ...]
    gammas: tuple[tuple[int, ...], ...]


def decision_map(
    controller: Controller,
    template: Observation,
    draft: int,
    acceptances: Sequence[float] = ACCEPTANCES,
    contexts: Sequence[int] = CONTEXTS,
) -> DecisionMap:
    """Ask a controller for its draft length over a grid of acceptances and contexts.

    A controller that looks at one draft only must be one for this draft. It is begun anew and learns nothing between
    the questions.

    Args:
        controller: Whom to ask.
        template: A real observation of the same zoo and device, phase DECODE; what is not said here stays as in it.
        draft: The only draft in memory and the only one that may guess.
        acceptances: Values of the draft's acceptance, prediction and confidence, all three alike.
        contexts: Lengths of prompt and text so far, in tokens.

    Raises:
        ValueError: If the template is of another phase, or has no such draft.
    """
    drafts = len(template.per_draft("resident"))
    if template.phase is not Phase.DECODE:
        raise ValueError(f"template: expected an observation of phase DECODE, got {template.phase.name}")
    if not 0 <= draft < drafts:
        raise ValueError(f"draft: expected an index below {drafts}, got {draft}")
    mask = _mask(drafts, draft)
    controller.begin_stream()

    def answer(acceptance: float, context: int) -> int:
        vector = _vector(template, draft, acceptance, context)
        decision = controller.decide(Observation(Phase.DECODE, vector, mask))
        return decision.gamma if decision.draft == draft else 0

    gammas = tuple(tuple(answer(acceptance, context) for context in contexts) for acceptance in acceptances)
    return DecisionMap(controller.name, draft, tuple(acceptances), tuple(contexts), gammas)


def _mask(drafts: int, draft: int) -> BoolMask:
    """Plain, or this draft with any length; any stop level; nothing else to decide. Shape (sum(nvec),)."""
    codec = ActionCodec(drafts)
    mask = np.zeros(codec.offsets[-1], dtype=np.bool_)
    mask[list(codec.offsets[:-1])] = True
    first = 1 + draft * len(GAMMAS)
    mask[first : first + len(GAMMAS)] = True
    mask[codec.offsets[1] : codec.offsets[2]] = True
    return mask


def _vector(template: Observation, draft: int, acceptance: float, context: int) -> Floats:
    """The template with the draft up to date and in memory, alone, at this acceptance and context; same shape."""
    vector = template.vector.copy()
    generated = min(template.value("generated_tokens"), context - 1)
    longer = context / max(template.value("context_tokens"), 1.0)
    accepted = sum(acceptance**place for place in range(1, LAST_DRAFTED + 1))  # mean run of right guesses
    for name, value in {
        "context_tokens": context,
        "generated_tokens": generated,
        "prompt_tokens": context - generated,
        "room_tokens": ROOM_TOKENS,
        "retain_share": template.value("retain_share") * longer,
        "last_drafted": LAST_DRAFTED,
        "last_accepted": round(accepted),
        "may_prefetch": 0.0,
        "loads_in_flight": 0.0,
    }.items():
        vector[GLOBAL_INDEX[name]] = value
    rows = vector[G:].reshape(-1, P)
    rows[:, DRAFT_INDEX["resident"]] = 0.0
    rows[:, DRAFT_INDEX["loading_fraction"]] = 0.0
    for name, value in {
        "resident": 1.0,
        "load_left": 0.0,
        "staleness": 0.0,
        "catch_up_tokens": 0.0,
        "catch_up_cost": 0.0,
        "next_shift": 0.0,
        **dict.fromkeys(("acceptance", "predicted", "confidence"), acceptance),
    }.items():
        rows[draft, DRAFT_INDEX[name]] = value
    return np.clip(vector, *bounds(len(rows)), out=vector)
