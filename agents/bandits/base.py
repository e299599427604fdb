"""Draft bandits: every draft is an arm, and the arm's pay is the speed it gave.

They learn from scratch in every stream. Length and stop level are fixed (tuned on training streams); stored KV is used
and kept greedily. A pull is some rounds with one arm; its pay is the committed tokens per second over them, catch-up
included, divided by the best pay seen, so that it lies within 0 and 1.

Each exists twice. By default an arm that is not there is loaded and decoding waits for it: what adaptive speculation
does on a device when nobody thinks of memory. The stall before a pull costs time like any other but is not part of the
pay: it says where the arm was, not how good it is (on made-up streams of shifting topics counting it slowed UCB by up
to 4% and left epsilon-greedy as it was). With ``resident_only`` a working set is brought in behind decoding at the
start of a stream, and the arms are the resident drafts that can guess now: nothing waits, and no draft is given up for
another.

Every arm is pulled once first, the one best on the training split to begin with.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, TypedDict

from agents.bandits.working_set import WorkingSet, able_drafts
from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, speculate
from runtime.core import Decision, Outcome, Phase


class Rhythm(NamedTuple):
    """How long a bandit remembers, and how often it chooses.

    Attributes:
        memory: Weight kept by earlier pulls after each pull.
        interval: Rounds of a pull.
    """

    memory: float
    interval: int


class Shared(TypedDict, total=False):
    """What every bandit may be given besides its own numbers; see ``DraftBandit``."""

    seed: int
    memory: float
    interval: int
    resident_only: bool


class DraftBandit(ABC):
    """What all bandits share: pulls, their pay, loading on demand or a working set.

    Pay is averaged with exponential forgetting: after each pull the weight of all earlier pulls is multiplied by
    ``memory`` (1 = an ordinary mean), because the topic of a stream shifts. An arm that could not be loaded is never
    pulled again.

    Args:
        n_drafts: Drafts of the zoo; all are arms.
        gamma: Draft length, one of ``GAMMAS``.
        stop: Stop level.
        seed: Of what is drawn; every stream draws from a sequence of its own.
        memory: Weight kept by earlier pulls, above 0 and at most 1; None = as tuned.
        interval: Rounds of a pull; None = as tuned.
        resident_only: Whether only resident drafts are arms; the name then ends in ``_resident``.

    Attributes:
        kind: Name in reports.
        loading: Rhythm as tuned on training streams where arms are loaded on demand.
        resident: The same with ``resident_only``: changing the arm costs little, so a pull is short.
    """

    kind: ClassVar[str]
    loading: ClassVar[Rhythm]
    resident: ClassVar[Rhythm]

    def __init__(
        self,
        n_drafts: int,
        gamma: int,
        stop: int,
        seed: int = 0,
        memory: float | None = None,
        interval: int | None = None,
        resident_only: bool = False,
    ) -> None:
        rhythm = self.resident if resident_only else self.loading
        memory = rhythm.memory if memory is None else memory
        interval = rhythm.interval if interval is None else interval
        if n_drafts < 1:
            raise ValueError(f"a bandit needs at least one draft, got {n_drafts}")
        if not 0.0 < memory <= 1.0:
            raise ValueError(f"memory: expected a weight above 0 and at most 1, got {memory}")
        if interval < 1:
            raise ValueError(f"interval: expected at least 1 round, got {interval}")
        self.name = f"{self.kind}_resident" if resident_only else self.kind
        self._codec = ActionCodec(n_drafts)
        self._n, self._gamma, self._stop, self._memory, self._interval = n_drafts, gamma, stop, memory, interval
        self._working_set = WorkingSet(n_drafts) if resident_only else None
        self._seed, self._streams = seed, 0
        self.begin_stream()

    def begin_stream(self) -> None:
        self._rng = random.Random(f"{self._seed}-{self._streams}")
        self._streams += 1
        self._paid = [0.0] * self._n  # tokens per second, summed over the remembered weight of an arm's pulls
        self._pulls = [0.0] * self._n  # remembered weight of an arm's pulls
        self._usable = set(range(self._n))
        self._best_pay = 0.0  # tokens per second
        self._arm: int | None = None
        self._asked: int | None = None
        self._rounds, self._tokens, self._seconds = 0, 0, 0.0
        if self._working_set is not None:
            self._working_set.begin_stream()

    def decide(self, observation: Observation) -> Decision:
        wanted = None if self._working_set is None else self._working_set.wanted(observation)
        rest = background(observation, self._codec, wanted, reuse_kv=True)
        self._asked = None
        if observation.phase is not Phase.DECODE or observation.value("room_tokens") <= 1:
            return rest
        arms = self._arms(observation)
        if self._arm not in arms or self._rounds >= self._interval:
            self._close_pull()
            self._arm = self._next_arm(arms, observation)
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

    def _arms(self, observation: Observation) -> list[int]:
        """Drafts that may be pulled now, in order."""
        return sorted(self._usable) if self._working_set is None else able_drafts(observation, self._n, self._stop)

    def _close_pull(self) -> None:
        if self._arm is not None and self._seconds > 0.0:
            pay = self._tokens / self._seconds
            self._best_pay = max(self._best_pay, pay)
            self._note(self._arm, pay)
        self._rounds, self._tokens, self._seconds = 0, 0, 0.0

    def _note(self, arm: int, pay: float) -> None:
        """Take in the pay of a pull, tokens per second."""
        self._paid = [paid * self._memory for paid in self._paid]
        self._pulls = [pulls * self._memory for pulls in self._pulls]
        self._paid[arm] += pay
        self._pulls[arm] += 1.0

    def _value(self, arm: int) -> float:
        """Mean remembered pay of a pulled arm, within 0 and 1."""
        return self._paid[arm] / self._pulls[arm] / self._best_pay

    def _next_arm(self, arms: list[int], observation: Observation) -> int | None:
        untried = [arm for arm in arms if self._pulls[arm] == 0.0]
        if untried:
            expected = observation.per_draft("acceptance")
            return max(untried, key=lambda arm: float(expected[arm]))
        return self._choose(arms) if arms else None

    @abstractmethod
    def _choose(self, arms: list[int]) -> int:
        """The next of some arms that were all pulled before."""
