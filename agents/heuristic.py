"""The policy's prior as a controller: what the policy decides before it has learned anything."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from agents.prior import TOKEN_PRICE, HeuristicPrior
from agents.round_table import RoundTable
from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.core import Decision, Outcome


class HeuristicController:
    """Takes the legal value with the highest score in every dimension.

    Args:
        table: Round statistics measured on the training traces.
        token_price: See ``HeuristicPrior``.
        name: Name in reports.
    """

    def __init__(self, table: RoundTable, token_price: float = TOKEN_PRICE, name: str = "heuristic") -> None:
        self.name = name
        self._prior = HeuristicPrior(table, token_price=token_price)
        self._codec = ActionCodec(len(table.drafts))
        self._slices = tuple(pairwise(self._codec.offsets))

    def begin_stream(self) -> None: ...

    @torch.inference_mode()
    def decide(self, observation: Observation) -> Decision:
        scores = self._prior(torch.from_numpy(observation.vector)[None])[0].numpy()
        legal = np.where(observation.mask, scores, -np.inf)
        return self._codec.decode([int(legal[begin:end].argmax()) for begin, end in self._slices])

    def learn(self, outcome: Outcome) -> None: ...
