"""MemSpec with one half taken out: without memory management, and without prediction.

Source: the ablations of the MemSpec paper (see ``runtime.control.memspec``), rebuilt from its published description.
"""

from __future__ import annotations

import numpy as np

from runtime.control.action import ActionCodec
from runtime.control.estimate import blended, freshness
from runtime.control.memspec import MemSpecController
from runtime.control.observation import Floats, Observation
from runtime.control.rules import background, speculate
from runtime.core import DEFAULT_DECISION_INTERVAL, Decision, Outcome, Phase

STALE_TOKENS = 256.0
"""Tokens after which evidence weighs 1/e: as long as a topic of one or two answers lasts."""


class MemSpecNoMemoryController:
    """Prediction alone: at each check the draft predicted best is demanded, and decoding waits for its load.

    Nothing is loaded in the background and no other draft stands in. A draft that cannot be loaded is not demanded
    again in the stream.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level; 0 as published.
        interval: Rounds between two checks; a request begins with one.
        reuse_kv: Whether stored prefixes are kept and reused greedily.
        name: Name in reports.
    """

    def __init__(
        self,
        n_drafts: int,
        gamma: int,
        stop: int = 0,
        interval: int = DEFAULT_DECISION_INTERVAL,
        reuse_kv: bool = True,
        name: str = "memspec_no_memory",
    ) -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._gamma, self._stop, self._interval, self._reuse_kv = gamma, stop, interval, reuse_kv
        self._usable = np.ones(n_drafts, dtype=np.bool_)
        self.begin_stream()

    def begin_stream(self) -> None:
        self._usable[:] = True
        self._draft: int | None = None
        self._demanded: int | None = None
        self._rounds = 0

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, None, self._reuse_kv)
        self._demanded = None
        if observation.phase is not Phase.DECODE:
            self._draft = None
            return rest
        if observation.value("room_tokens") <= 1:
            return rest
        if self._draft is None or self._rounds >= self._interval:
            self._check(observation)
        if self._draft is None:
            return rest
        if observation.per_draft("resident")[self._draft] > 0:
            return speculate(observation, self._draft, self._gamma, self._stop, rest)
        self._demanded = self._draft
        return rest._replace(draft=self._draft, gamma=self._gamma, stop=self._stop, wait=True)

    def learn(self, outcome: Outcome) -> None:
        if outcome.phase is not Phase.DECODE:
            return
        self._rounds += 1
        if self._demanded is not None and outcome.decision.draft is None:  # it could not be loaded
            self._usable[self._demanded] = False
            self._draft = None

    def _check(self, observation: Observation) -> None:
        self._rounds = 0
        predicted = np.where(self._usable, observation.per_draft("predicted"), -1.0)
        best = int(np.argmax(predicted))
        self._draft = best if self._usable[best] else None


class MemSpecNoPredictionController(MemSpecController):
    """Memory management alone: MemSpec's background loads and best resident draft, chosen by recent evidence.

    What a draft was last seen to do counts less the longer ago it was; instead counts its mean on the training split
    and a bonus for being unknown. So a draft is tried again, or for the first time, when the resident ones do worse
    than it might.

    Args:
        expected: Mean training acceptance of every draft.
        gamma: Draft length.
        stop: Stop level; 0 as published.
        bonus: What is added to the acceptance expected of a draft of which nothing fresh is known.
        reuse_kv: Whether stored prefixes are kept and reused greedily.
        name: Name in reports.
    """

    def __init__(
        self,
        expected: tuple[float, ...],
        gamma: int,
        stop: int = 0,
        bonus: float = 0.05,
        reuse_kv: bool = True,
        name: str = "memspec_no_prediction",
    ) -> None:
        super().__init__(len(expected), gamma, stop, reuse_kv, name)
        self._expected: Floats = np.array(expected, dtype=np.float32)
        self._bonus = bonus

    def _acceptance(self, observation: Observation) -> Floats:
        fresh = freshness(observation, STALE_TOKENS)
        return blended(observation, self._expected + np.float32(self._bonus), fresh)
