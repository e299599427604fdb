"""The prior as it is deployed: the scores of ``HeuristicPrior`` for one observation, in few operations.

On a device one decision is made at a time and everything it touches has left the caches since the last one, so what an
operation costs is being started, not what it computes. ``HeuristicPrior`` says what the scores mean and is what
training runs; this module gives the same numbers, up to rounding, by other means:

* One matrix product makes every affine function of the observation that is needed anywhere (``agents.lanes``).
* The table between its knots is a matrix product too: with ``reach_k = clip(acceptance - knot_k, 0, width)`` a curve is
  its first value + the sum of slope_k * reach_k. The verify cost has its knots in guesses, and so is one more such sum.
* Catch-up is paid once for all rounds to come: ``cost / max(room / (1 + accepted), 1)`` is
  ``cost * clip((1 + accepted) / max(room, 1), 0, 1)``, which makes it one more clipped part beside those of the verify
  cost.
* What is expected of the next round and of the rounds after it go through the table side by side.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.lanes import Form, Forms, stacked
from agents.prior import COPY_COST, DRAFT_CHANCE, UNAVAILABLE, HeuristicPrior
from agents.round_table import EVIDENCE_SHARE, LEAST, SHIFT_WEIGHT
from runtime.control.observation import GLOBAL_FEATURES, GLOBAL_INDEX
from runtime.core import GAMMAS, STOP_LEVELS

LONGEST = float(GAMMAS[-1])
PARTS = len(GAMMAS) + 3
"""What a round's saving is a sum of: accepted guesses, verify cost between the knots, forwards, catch-up."""


class Lanes(NamedTuple):
    """What the first matrix product gives, each (1, n); N drafts, pairs first for the next round, then for later ones.

    Attributes:
        fading: Logarithm of the weight of evidence, twice (2N).
        gap: Evidence less prediction, and its negative (2N).
        base: Predicted share of right guesses, and of wrong ones (2N).
        shift: What the last token adds to the logit (N).
        certain: Acceptance of look-ups: the next one's confidence; nothing later (2N).
        predicted: The topic's prediction (N).
        signs: Positive for: a look-up (2N), a resident draft (N), one larger than what is free or stored KV (N),
            admission, KV that needs a draft's room.
        caps: Where the parts of a saving end: all at the same number, catch-up at the room left (PARTS).
        prices: Of all parts of a saving, draft by draft (N * PARTS).
        absence: Penalty of a draft that is not resident, for every length (N * Γ).
        rounds: Rounds left behind a load (N).
        load_price: What a load costs in any case (N).
        admitted: Score of reuse (1).
        hits: Share of prompts found again (1).
        again: What computing again would cost (1).
        loss: What a draft given up for KV would cost (N).
    """

    fading: Tensor
    gap: Tensor
    base: Tensor
    shift: Tensor
    certain: Tensor
    predicted: Tensor
    signs: Tensor
    caps: Tensor
    prices: Tensor
    absence: Tensor
    rounds: Tensor
    load_price: Tensor
    admitted: Tensor
    hits: Tensor
    again: Tensor
    loss: Tensor


class DeployPrior(nn.Module):
    """Scores of ``prior`` from one raw observation, (1, D) to (1, M).

    Args:
        prior: Whose scores.
    """

    weights: Tensor
    constants: Tensor
    against: Tensor
    knots: Tensor
    table: Tensor
    zero: Tensor
    copying: Tensor
    tight: Tensor
    loose: Tensor

    def __init__(self, prior: HeuristicPrior) -> None:
        super().__init__()
        n = self.n_drafts = prior.n_drafts
        knots = torch.linspace(0.0, 1.0, prior.curves.shape[1])[:-1]
        self.width = float(np.float32(1.0) / np.float32(len(knots)))
        cap = float(2.0 ** (1.0 + np.ceil(np.log2(GLOBAL_FEATURES[GLOBAL_INDEX["room_tokens"]].high))))
        groups = _lanes(n, prior.sharpness, prior.token_price, cap)
        self.sizes = [len(group) for group in groups]
        weights, constants = stacked([form for group in groups for form in group])
        for name, value in {
            "weights": torch.from_numpy(weights),
            "constants": torch.from_numpy(constants),
            "against": torch.cat([torch.eye(n), -torch.eye(n)]),  # logit = log(right) - log(wrong)
            "knots": torch.cat([torch.tensor([-1.0]), knots]),  # beyond the first one everything is: a constant
            "table": _table(prior.curves.detach().cpu().double(), self.width, cap).float(),
            "zero": torch.zeros(1, 1),
            "copying": torch.full((1, 1), 2.0 * COPY_COST),
            "tight": torch.full((1, 1), -1.0),
            "loose": torch.ones(1, 1),
        }.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        """A raw observation (1, G + N * P) to scores (1, n_logits)."""
        n = self.n_drafts
        lanes = Lanes(*torch.split(functional.linear(observation, self.weights, self.constants), self.sizes, dim=1))
        lookup, resident, large, admitting, lacking = torch.split(lanes.signs > 0.0, [2 * n, n, n, 1, 1], dim=1)
        saving, later = self._savings(lanes, self._acceptance(lanes, lookup))
        usable = saving.amax(dim=1) + lanes.absence
        row = saving.index_select(0, usable.argmax(dim=1))
        stop = row - row.amax(dim=1, keepdim=True)
        have = torch.where(resident, later, self.zero).amax(dim=1, keepdim=True).clamp(min=0.0)
        prefetch = ((later - have) * lanes.rounds.clamp(min=0.0) - lanes.load_price).clamp(-12.0, 12.0)
        crowded = torch.where(large, prefetch, self.tight).index_select(1, prefetch.argmax(dim=1)) > 0.0
        victim = torch.where(crowded, self.tight, self.loose)
        cost = torch.where(lacking, lanes.loss, self.copying).amax(dim=1, keepdim=True)
        keep = torch.where(admitting, lanes.admitted, lanes.hits * lanes.again - cost).clamp(-4.0, 4.0)
        zero = self.zero
        return torch.cat([zero, usable, stop, zero, prefetch, zero, keep, zero, victim], dim=1)

    def _acceptance(self, lanes: Lanes, lookup: Tensor) -> Tensor:
        """Acceptance of every draft's next guess, then over the rounds after it, (1, 2N)."""
        shares = (lanes.base + lanes.fading.exp() * lanes.gap).clamp(LEAST, 1.0 - LEAST)  # right, wrong
        estimate = torch.addmm(lanes.shift, shares.log(), self.against).sigmoid()
        return torch.where(lookup, lanes.certain, torch.cat([estimate, lanes.predicted], dim=1))

    def _savings(self, lanes: Lanes, acceptance: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the next round by draft and length, and stop level, (N * Γ, S); best later ones, (1, N)."""
        n, rounds = self.n_drafts, len(GAMMAS) * len(STOP_LEVELS)
        reach = (acceptance.reshape(2, n, 1, 1) - self.knots).clamp(0.0, self.width)
        parts = torch.matmul(reach, self.table).reshape(2, n, PARTS, rounds)
        parts = (parts / lanes.caps.clamp(min=1.0).reshape(PARTS, 1)).clamp(0.0, 1.0)
        now, later = torch.split(torch.matmul(lanes.prices.reshape(n, 1, PARTS), parts), 1, dim=0)
        return now.reshape(-1, len(STOP_LEVELS)), later.amax(dim=(2, 3))


def _lanes(n: int, sharpness: float, token_price: float, cap: float) -> list[list[Form]]:
    """The forms of ``Lanes``, group by group. Scores are in logits, ``sharpness`` of them a plain step."""
    forms, drafts = Forms(n), range(n)
    one, of, own = forms.one, forms.of, forms.of_draft
    ratios = [one, *(of(f"verify_ratio_{gamma}") for gamma in GAMMAS)]
    verify = [-sharpness * (right - left) for left, right in pairwise(ratios)]
    free = of("free_share") + of("kv_share")
    gaps = [own("acceptance", d) - own("predicted", d) for d in drafts]
    predicted = [own("predicted", d) for d in drafts]
    prices = [
        [
            sharpness * token_price * LONGEST * one,
            *verify,
            -sharpness * LONGEST * own("step_ratio", d),
            -sharpness * own("catch_up_cost", d),
        ]
        for d in drafts
    ]
    return [
        [np.log(EVIDENCE_SHARE) * one - own("staleness", d) / 16.0 for d in drafts] * 2,
        gaps + [-gap for gap in gaps],
        predicted + [one - share for share in predicted],
        [SHIFT_WEIGHT * own("next_shift", d) for d in drafts],
        [own("confidence", d) for d in drafts] + [0.0 * one] * n,
        predicted,
        [
            *[own("weightless", d) for d in drafts] * 2,
            *(own("resident", d) for d in drafts),
            *(own("size_share", d) - free for d in drafts),
            of("phase_admit"),
            of("retain_share") - free,
        ],
        [*[cap * one] * (PARTS - 1), of("room_tokens")],
        [price for row in prices for price in row],
        [-UNAVAILABLE * (own("resident", d) - one) for d in drafts for _ in GAMMAS],
        [(2.0 / sharpness) * (of("room_tokens") / 2.5 - own("load_left", d) / 2.0) for d in drafts],
        [one + 0.2 * own("load_left", d) for d in drafts],
        [2.0 * (of("again_cost") - COPY_COST * one)],
        [of("hit_share")],
        [2.0 * of("again_cost")],
        [2.0 * (COPY_COST * one + DRAFT_CHANCE * own("load_left", d)) for d in drafts],
    ]


def _table(curves: Tensor, width: float, cap: float) -> Tensor:
    """The curves of all parts as slopes over ``reach``: (N, bins, Γ, S, 3) to (N, bins, PARTS * Γ * S).

    All but the last part are scaled to ``cap``, at which they end; the last one ends at the room.
    """
    accepted, drafted, steps = (part[..., 0] for part in torch.split(curves, 1, dim=4))
    knots = [0.0, *map(float, GAMMAS)]
    verified = [(drafted - left) / (right - left) for left, right in pairwise(knots)]
    capped = [cap * part for part in (accepted / LONGEST, *verified, steps / LONGEST)]
    values = torch.stack([*capped, 1.0 + accepted], dim=2).flatten(2)  # (N, bins, PARTS * Γ * S)
    return torch.cat([values[:, :1], values[:, 1:] - values[:, :-1]], dim=1) / width
