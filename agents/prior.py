"""What the policy knows before it has learned anything: a heuristic's scores as a torch module.

For every draft, length and stop level a table measured on the training traces (see ``agents.round_table``) gives the
expected accepted, verified and computed guesses of a round, by estimated acceptance. With the profile's cost ratios,
which are part of the observation, that is an expected saving; the scores are these savings, sharpened. Prefetching,
KV and victim get simple scores in the same unit. Everything is computed from the raw observation, so that prior and
network export as one graph.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from agents.round_table import EVIDENCE_SHARE, LEAST, SHIFT_WEIGHT, RoundTable
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, P
from runtime.core import GAMMAS, STOP_LEVELS

COPY_COST = 0.15
"""Plain steps that copying stored KV takes, about."""
DRAFT_CHANCE = 0.5
"""Chance that a draft which is given up for stored KV is wanted again."""
TOKEN_PRICE = 0.6
"""Plain decoding steps that a committed token is worth: what a token takes when speculation goes well."""
UNAVAILABLE = -20.0
"""Score of a draft that is not resident."""


class HeuristicPrior(nn.Module):
    """Scores of every action value, from raw observations.

    Args:
        table: Measured round statistics.
        sharpness: Logits per plain decoding step saved.
        token_price: Plain decoding steps that one committed token is worth: what a token costs when all goes well.
    """

    curves: Tensor
    lines: Tensor
    widths: Tensor

    def __init__(self, table: RoundTable, sharpness: float = 12.0, token_price: float = TOKEN_PRICE) -> None:
        super().__init__()
        self.n_drafts = len(table.drafts)
        self.sharpness, self.token_price = sharpness, token_price
        self.register_buffer("curves", torch.as_tensor(table.statistics, dtype=torch.float32))  # (N, bins, Γ, S, 3)
        self.register_buffer("widths", torch.diff(torch.tensor([0.0, *map(float, GAMMAS)])), persistent=False)
        self.register_buffer("lines", _lines(self.curves), persistent=False)
        self.n_gammas, self.n_stops = len(GAMMAS), len(STOP_LEVELS)

    @property
    def n_logits(self) -> int:
        """Length of the score vector, sum of the action dimensions."""
        return 1 + self.n_drafts * self.n_gammas + self.n_stops + 1 + self.n_drafts + 4

    def forward(self, observation: Tensor) -> Tensor:
        """Raw observations (batch, G + N * P) to scores (batch, n_logits)."""
        glob, rows = observation[:, :G], observation[:, G:].reshape(-1, self.n_drafts, P)
        saving = self._savings(glob, rows, self.estimate(rows))  # (batch, N, Γ, S)
        best = saving.amax(dim=3)  # (batch, N, Γ)
        lasting = self._savings(glob, rows, self.outlook(rows)).flatten(2).amax(dim=2)  # (batch, N)
        resident = rows[:, :, DRAFT_INDEX["resident"]]
        usable = best * self.sharpness + (resident[:, :, None] - 1.0) * -UNAVAILABLE
        speculate = torch.cat([torch.zeros_like(usable[:, 0, :1]), usable.flatten(1)], dim=1)
        stop = self._stop_scores(saving, usable)
        prefetch = self._prefetch_scores(glob, rows, lasting)
        zeros = torch.zeros_like(glob[:, :1])
        keep = self._kv_scores(glob, rows)
        victim = self._victim_scores(glob, rows, prefetch)
        return torch.cat([speculate, stop, prefetch, zeros, keep, zeros, victim], dim=1)

    def _savings(self, glob: Tensor, rows: Tensor, estimate: Tensor) -> Tensor:
        """Expected plain steps saved by a round, (batch, N, Γ, S), if a next guess is right this often, (batch, N)."""
        stats = self._statistics(estimate)
        accepted, drafted, steps = stats[:, :, 0], stats[:, :, 1], stats[:, :, 2]
        cost = self._verify_ratio(glob, drafted) + steps * rows[:, :, DRAFT_INDEX["step_ratio"], None, None]
        rounds = (glob[:, GLOBAL_INDEX["room_tokens"], None, None, None] / (1.0 + accepted)).clamp(min=1.0)
        cost = cost + rows[:, :, DRAFT_INDEX["catch_up_cost"], None, None] / rounds  # paid once, for all rounds to come
        return self.token_price * accepted - (cost - 1.0)

    def _statistics(self, estimate: Tensor) -> Tensor:
        """The table at these acceptances, between its knots by the line through them: (batch, N, 3, Γ, S)."""
        bins = self.curves.shape[1]
        place = estimate.clamp(0.0, 1.0) * (bins - 1)
        low = place.floor().clamp(max=bins - 2)
        index = low.long() + torch.arange(self.n_drafts, device=low.device) * bins
        both = self.lines.index_select(0, index.flatten())  # rows of a matrix: cheaper than places in five dimensions
        value, slope = torch.split(both, both.shape[1] // 2, dim=1)
        stats = torch.addcmul(value, slope, (place - low).reshape(-1, 1))
        return stats.reshape(-1, self.n_drafts, 3, self.n_gammas, self.n_stops)

    def estimate(self, rows: Tensor) -> Tensor:
        """Acceptance to expect of every draft's next guess, (batch, N).

        Evidence while it is fresh, else the topic's prediction; corrected by what the last token says.
        """
        evidence = rows[:, :, DRAFT_INDEX["acceptance"]]
        predicted = rows[:, :, DRAFT_INDEX["predicted"]]
        fresh = EVIDENCE_SHARE * torch.exp(-rows[:, :, DRAFT_INDEX["staleness"]] / 16.0)
        blended = fresh * evidence + (1.0 - fresh) * predicted
        blended = torch.logit(blended, eps=LEAST) + SHIFT_WEIGHT * rows[:, :, DRAFT_INDEX["next_shift"]]
        blended = torch.sigmoid(blended)
        lookup = rows[:, :, DRAFT_INDEX["weightless"]] > 0.0
        return torch.where(lookup, rows[:, :, DRAFT_INDEX["confidence"]], blended)

    def outlook(self, rows: Tensor) -> Tensor:
        """Acceptance to expect of every draft over the next rounds, (batch, N): the topic's prediction.

        Nothing is expected of a look-up: it is sure of itself now and then, and beside a draft then.
        """
        weightless = rows[:, :, DRAFT_INDEX["weightless"]] > 0.0
        predicted = rows[:, :, DRAFT_INDEX["predicted"]]
        return torch.where(weightless, torch.zeros_like(predicted), predicted)

    def _verify_ratio(self, glob: Tensor, drafted: Tensor) -> Tensor:
        """Verify cost at a fractional number of guesses, interpolated over 0, 1, 2, 4, 8."""
        first = GLOBAL_INDEX[f"verify_ratio_{GAMMAS[0]}"]
        ratio = glob[:, first : first + self.n_gammas]
        knots = [0.0, *map(float, GAMMAS)]
        slopes = (ratio - torch.cat([torch.ones_like(ratio[:, :1]), ratio[:, :-1]], dim=1)) / self.widths
        cost = torch.ones_like(drafted)
        for index, (left, right) in enumerate(pairwise(knots)):
            part = drafted.clamp(left, right) - left
            cost = torch.addcmul(cost, slopes[:, index, None, None, None], part)
        return cost

    def _stop_scores(self, saving: Tensor, usable: Tensor) -> Tensor:
        """Scores of the stop levels for the draft and length that the prior likes best, (batch, S)."""
        choice = usable.flatten(1).argmax(dim=1)
        per_stop = saving.flatten(1, 2).gather(1, choice[:, None, None].expand(-1, 1, self.n_stops)).squeeze(1)
        return self.sharpness * (per_stop - per_stop.amax(dim=1, keepdim=True))

    def _prefetch_scores(self, glob: Tensor, rows: Tensor, value: Tensor) -> Tensor:
        """Gain of a load over the text that is left, in plain steps, against loading nothing; (batch, 1 + N)."""
        resident = rows[:, :, DRAFT_INDEX["resident"]]
        have = torch.where(resident > 0, value, torch.zeros_like(value)).amax(dim=1, keepdim=True).clamp(min=0.0)
        rounds_left = glob[:, GLOBAL_INDEX["room_tokens"], None] / 2.5 - rows[:, :, DRAFT_INDEX["load_left"]] / 2.0
        gain = (value - have) * rounds_left.clamp(min=0.0)
        price = 0.5 + 0.1 * rows[:, :, DRAFT_INDEX["load_left"]]
        score = (gain - price).clamp(-6.0, 6.0) * 2.0
        return torch.cat([torch.zeros_like(score[:, :1]), score], dim=1)

    def _victim_scores(self, glob: Tensor, rows: Tensor, prefetch: Tensor) -> Tensor:
        """Score of giving up stored KV rather than drafts, (batch, 1); a load may need a draft's place in any case."""
        wanted = prefetch[:, 1:].argmax(dim=1, keepdim=True)
        size = rows[:, :, DRAFT_INDEX["size_share"]].gather(1, wanted)
        room = glob[:, GLOBAL_INDEX["free_share"], None] + glob[:, GLOBAL_INDEX["kv_share"], None]
        loads = prefetch[:, 1:].gather(1, wanted) > 0.0
        return torch.where(loads & (size > room), -1.0, 1.0)

    def _kv_scores(self, glob: Tensor, rows: Tensor) -> Tensor:
        """Score of reuse / retain against bypass / drop, (batch, 1): prefill saved less its cost, in plain steps."""
        again = glob[:, GLOBAL_INDEX["again_cost"], None]
        room = glob[:, GLOBAL_INDEX["free_share"], None] + glob[:, GLOBAL_INDEX["kv_share"], None]
        lacks = glob[:, GLOBAL_INDEX["retain_share"], None] > room  # a draft has to go for it
        load = rows[:, :, DRAFT_INDEX["load_left"]].amax(dim=1, keepdim=True)
        retain = glob[:, GLOBAL_INDEX["hit_share"], None] * again - COPY_COST - lacks * DRAFT_CHANCE * load
        score = torch.where(glob[:, GLOBAL_INDEX["phase_admit"], None] > 0, again - COPY_COST, retain)
        return 2.0 * score.clamp(-2.0, 2.0)


def _lines(curves: Tensor) -> Tensor:
    """Value and slope from every knot on, by draft and knot: (N * bins, 2 * 3 * Γ * S)."""
    flat = curves.movedim(4, 2).flatten(2)  # (N, bins, 3 * Γ * S)
    slope = torch.cat([flat[:, 1:] - flat[:, :-1], torch.zeros_like(flat[:, :1])], dim=1)
    return torch.cat([flat, slope], dim=2).flatten(0, 1)
