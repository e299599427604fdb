"""Draft bandits: every draft is an arm, the arm's pay is the speed it gave, and an arm that is not there is loaded.

They learn from scratch in every stream, know nothing of memory and stall for each load: what adaptive speculation does
on a device when nobody thinks of memory. Length and stop level are fixed (tuned on training streams); stored KV is
used and kept greedily. A pull is some rounds with one arm; its pay is the committed tokens per second over them,
catch-up included, divided by the best pay seen, so that it lies within 0 and 1. The stall before a pull costs time like
any other but is not part of the pay: it says where the arm was, not how good it is (on made-up streams of shifting
topics counting it slowed UCB by up to 4% and left epsilon-greedy as it was).

Every arm is pulled once first, the one best on the training split to begin with.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, speculate
from runtime.core import DEFAULT_DECISION_INTERVAL, Decision, Outcome, Phase


class DraftBandit(ABC):
    """What both bandits share: pulls, their pay, loading on demand.

    Pay is averaged with exponential forgetting: after each pull the weight of all earlier pulls is multiplied by
    ``memory`` (1 = an ordinary mean), because the topic of a stream shifts. An arm that could not be loaded is never
    pulled again.

    Args:
        n_drafts: Drafts of the zoo; all are arms.
        gamma: Draft length, one of ``GAMMAS``.
        stop: Stop level.
        memory: Weight kept by earlier pulls, above 0 and at most 1.
        interval: Rounds of a pull.
        name: Name in reports.
    """

    def __init__(self, n_drafts: int, gamma: int, stop: int, memory: float, interval: int, name: str) -> None:
        if n_drafts < 1:
            raise ValueError(f"a bandit needs at least one draft, got {n_drafts}")
        if not 0.0 < memory <= 1.0:
            raise ValueError(f"memory: expected a weight above 0 and at most 1, got {memory}")
        if interval < 1:
            raise ValueError(f"interval: expected at least 1 round, got {interval}")
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._n, self._gamma, self._stop, self._memory, self._interval = n_drafts, gamma, stop, memory, interval
        self.begin_stream()

    def begin_stream(self) -> None:
        self._paid = [0.0] * self._n  # tokens per second, summed over the remembered weight of an arm's pulls
        self._pulls = [0.0] * self._n  # remembered weight of an arm's pulls
        self._usable = set(range(self._n))
        self._best_pay = 0.0  # tokens per second
        self._arm: int | None = None
        self._asked: int | None = None
        self._rounds, self._tokens, self._seconds = 0, 0, 0.0

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, None, reuse_kv=True)
        self._asked = None
        if observation.phase is not Phase.DECODE or observation.value("room_tokens") <= 1:
            return rest
        if self._arm is None or self._rounds >= self._interval:
            self._close_pull()
            self._arm = self._next_arm(observation)
        if self._arm is None:
            return rest
        if observation.per_draft("resident")[self._arm] > 0:
            return speculate(observation, self._arm, self._gamma, self._stop, rest)
        self._asked = self._arm
        return rest._replace(draft=self._arm, gamma=self._gamma, stop=self._stop, wait=True)

    def learn(self, outcome: Outcome) -> None:
        if outcome.phase is not Phase.DECODE:
            return
        if self._asked is not None and outcome.decision.draft is None:  # it could not be loaded
            self._usable.discard(self._asked)
            self._arm, self._rounds, self._tokens, self._seconds = None, 0, 0, 0.0
            return
        self._rounds += 1
        self._tokens += outcome.committed
        self._seconds += outcome.seconds - outcome.stall_s

    def _close_pull(self) -> None:
        if self._arm is not None and self._seconds > 0.0:
            pay = self._tokens / self._seconds
            self._best_pay = max(self._best_pay, pay)
            self._paid = [paid * self._memory for paid in self._paid]
            self._pulls = [pulls * self._memory for pulls in self._pulls]
            self._paid[self._arm] += pay
            self._pulls[self._arm] += 1.0
        self._rounds, self._tokens, self._seconds = 0, 0, 0.0

    def _value(self, arm: int) -> float:
        """Mean remembered pay of a pulled arm, within 0 and 1."""
        return self._paid[arm] / self._pulls[arm] / self._best_pay

    def _next_arm(self, observation: Observation) -> int | None:
        untried = [arm for arm in sorted(self._usable) if self._pulls[arm] == 0.0]
        if untried:
            expected = observation.per_draft("acceptance")
            return max(untried, key=lambda arm: float(expected[arm]))
        return self._choose(sorted(self._usable)) if self._usable else None

    @abstractmethod
    def _choose(self, arms: list[int]) -> int:
        """The next of some arms that were all pulled before."""


class EpsilonGreedyController(DraftBandit):
    """Mostly the arm that paid best, now and then any arm.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level.
        seed: Of the exploration; every stream draws from a sequence of its own.
        epsilon: Chance of any arm instead of the best.
        memory: Weight kept by earlier pulls.
        interval: Rounds of a pull.
        name: Name in reports.
    """

    def __init__(
        self,
        n_drafts: int,
        gamma: int,
        stop: int = 0,
        seed: int = 0,
        epsilon: float = 0.07,
        memory: float = 0.8,
        interval: int = DEFAULT_DECISION_INTERVAL,
        name: str = "bandit_epsilon",
    ) -> None:
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon: expected a probability, got {epsilon}")
        self._epsilon, self._seed, self._streams = epsilon, seed, 0
        super().__init__(n_drafts, gamma, stop, memory, interval, name)

    def begin_stream(self) -> None:
        super().begin_stream()
        self._rng = random.Random(f"{self._seed}-{self._streams}")
        self._streams += 1

    def _choose(self, arms: list[int]) -> int:
        return self._rng.choice(arms) if self._rng.random() < self._epsilon else max(arms, key=self._value)


class UcbController(DraftBandit):
    """The arm whose pay could be best, given how often it was tried: UCB1 with forgetting and a smaller bonus.

    The next arm has the highest ``mean + exploration * sqrt(2 * ln(all pulls) / its pulls)``. As published (both 1) it
    explores for longer than a stream lasts.

    Source: Auer, Cesa-Bianchi and Fischer 2002, UCB1; forgetting as in discounted UCB, Garivier and Moulines 2011.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length.
        stop: Stop level.
        exploration: Factor on the bonus; 1 = as published.
        memory: Weight kept by earlier pulls; 1 = UCB1.
        interval: Rounds of a pull.
        name: Name in reports.
    """

    def __init__(
        self,
        n_drafts: int,
        gamma: int,
        stop: int = 0,
        exploration: float = 0.2,
        memory: float = 0.95,
        interval: int = DEFAULT_DECISION_INTERVAL,
        name: str = "bandit_ucb",
    ) -> None:
        if exploration < 0.0:
            raise ValueError(f"exploration: expected at least 0, got {exploration}")
        self._exploration = exploration
        super().__init__(n_drafts, gamma, stop, memory, interval, name)

    def _choose(self, arms: list[int]) -> int:
        log_all = math.log(max(1.0, sum(self._pulls[arm] for arm in arms)))

        def most_it_could_be(arm: int) -> float:
            return self._value(arm) + self._exploration * math.sqrt(2.0 * log_all / self._pulls[arm])

        return max(arms, key=most_it_could_be)
