"""From logits to the next token of a request that asks for sampling.

The filters are those of ``transformers`` (``generation/logits_process.py``), in the order of the fields of
``runtime.core.Sampling``: repetition penalty, temperature, top-k, top-p, min-p. Whatever the dtype of a model, its
logits arrive here in fp32, and the target's distribution p and a draft's distribution q are both computed and drawn
from in fp32: a guess drawn from anything but the q that verification sees would bias the text.

Randomness is one uniform number a decision, from a generator on the CPU that belongs to the request, so a seed means
the same on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from runtime.core import Sampling
from runtime.errors import UserError

LEAST_TEMPERATURE = 1e-6
"""Anything below is this: logits that lie less than 1e-4 apart are ties of fp32, and 1 / temperature stays finite."""

FIRST_LOOK = 1024
"""Likeliest tokens that are sorted for top-p before all are: a full sort of 49,152 takes eight times as long."""


def penalised(logits: torch.Tensor, seen: Sequence[int], penalty: float) -> torch.Tensor:
    """Logits after the repetition penalty (Keskar et al. 2019, "CTRL", in the form of ``transformers``).

    Args:
        logits: Shape (V,).
        seen: Rows that occurred before, in any order, repeated or not.
        penalty: A seen logit is divided by this if positive, multiplied if negative.
    """
    if penalty == 1.0 or not seen:
        return logits
    rows = torch.tensor(seen, dtype=torch.long, device=logits.device)
    found = logits[rows]
    adjusted = logits.clone()
    adjusted[rows] = torch.where(found < 0, found * penalty, found / penalty)
    return adjusted


def distribution(logits: torch.Tensor, seen: Sequence[int], sampling: Sampling, temperature: float) -> torch.Tensor:
    """Probabilities from which a token is drawn, float32, shape (V,).

    Args:
        logits: Float32, shape (V,).
        seen: Rows that occurred before.
        sampling: The filters.
        temperature: Above 0; not the one in ``sampling``, because drafts may have their own.
    """
    scores = penalised(logits, seen, sampling.repetition_penalty)
    scores = (scores - scores.max()) / max(temperature, LEAST_TEMPERATURE)
    if 0 < sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    probabilities = scores.softmax(dim=-1)
    if sampling.top_p < 1.0:
        probabilities = _nucleus(probabilities, sampling.top_p)
    if sampling.min_p > 0.0:
        probabilities = probabilities.masked_fill(probabilities < sampling.min_p * probabilities.max(), 0.0)
    return probabilities / probabilities.sum()


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """The likeliest tokens, as many as reach ``top_p``; the others are 0. Not normalised. Shape (V,)."""
    values, rows = probabilities.topk(min(FIRST_LOOK, len(probabilities)))
    if len(values) < len(probabilities) and float(values.sum(dtype=torch.float64)) < top_p:
        values, rows = probabilities.sort(descending=True)
    likelier = values.cumsum(0, dtype=torch.float64) - values
    kept = torch.where(likelier < top_p, values, 0.0)
    return torch.zeros_like(probabilities).index_copy(0, rows, kept)


class Sampler:
    """Draws the tokens of one request.

    Args:
        sampling: How the request wants its tokens chosen.
    """

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        given = sampling.draft_temperature
        self._draft_temperature = sampling.temperature if given is None else given
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    @property
    def greedy(self) -> bool:
        """Whether the target's likeliest token is always taken."""
        return self.sampling.greedy

    @property
    def penalises(self) -> bool:
        """Whether it matters which tokens occurred before."""
        return self.sampling.repetition_penalty != 1.0

    @property
    def plain(self) -> bool:
        """Whether the likeliest token of unchanged logits is always taken, by the target and by drafts."""
        return self.greedy and not self.penalises and self._draft_temperature == 0.0

    def penalised(self, logits: torch.Tensor, seen: Sequence[int]) -> torch.Tensor:
        """``penalised`` with the request's penalty."""
        return penalised(logits, seen, self.sampling.repetition_penalty)

    def distribution(self, logits: torch.Tensor, seen: Sequence[int]) -> torch.Tensor:
        """The target's p of a request that is not greedy. Float32, shape (V,)."""
        return self._filtered(logits, seen, self.sampling.temperature)

    def choose(self, logits: torch.Tensor, seen: Sequence[int]) -> int:
        """The target's next token, without any guess."""
        if self.greedy:
            return int(self.penalised(logits, seen).argmax())
        return self.draw(self.distribution(logits, seen))

    def guess(self, logits: torch.Tensor, seen: Sequence[int]) -> tuple[int, torch.Tensor | None]:
        """A draft's guess and the q it was drawn from; None = it is the likeliest, a point mass.

        Args:
            logits: Float32, over the draft's own rows, shape (V,).
            seen: Rows, not token ids, that occurred before.

        Returns:
            The row, and q over the rows: all filters applied, float32, shape (V,).
        """
        if self._draft_temperature == 0.0:
            return int(self.penalised(logits, seen).argmax()), None
        q = self._filtered(logits, seen, self._draft_temperature)
        return self.draw(q), q

    def accepts(self, probability: float) -> bool:
        """True with this probability; always from 1 on."""
        return self._uniform() < probability

    def draw(self, weights: torch.Tensor) -> int:
        """An index with a probability proportional to its weight, by inverting the cumulated weights in fp64.

        Args:
            weights: Not negative, shape (V,).

        Raises:
            UserError: If the weights are not finite or all 0, because the model's logits are not finite.
        """
        reached = weights.cumsum(0, dtype=torch.float64)
        total = float(reached[-1])
        if not 0.0 < total < math.inf:
            raise UserError("the model's logits are not finite, nothing can be drawn from them: try another dtype")
        # below the total even where the product rounds up to it, so that the index found has a weight
        mark = min(self._uniform() * total, math.nextafter(total, 0.0))
        return int(torch.searchsorted(reached, mark, right=True))

    def _filtered(self, logits: torch.Tensor, seen: Sequence[int], temperature: float) -> torch.Tensor:
        return distribution(logits, seen, self.sampling, temperature)

    def _uniform(self) -> float:
        """A number from 0, inclusive, to 1, exclusive."""
        return float(torch.rand((), dtype=torch.float64, generator=self._generator))
