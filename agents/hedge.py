"""Hedge with full information: one verified text scores every resident draft, not only the one that guessed."""

from __future__ import annotations

from agents.bandits.working_set import WorkingSet, able_drafts
from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, speculate
from runtime.core import Decision, Outcome, Phase


class HedgeController:
    """The resident draft with the largest weight guesses; weights come from every draft's share of wrong guesses.

    Every position of the text multiplies a draft's weight by ``exp(-loss)``, and the logarithm of all weights shrinks
    by ``memory``, because topics shift. The loss is the share of wrong guesses where the draft was scored, elsewhere
    the share that it gets wrong on the training split; when it is scored later, the difference is made up for. So the
    logarithm of a weight is, but for a constant that all share, ``expected / (1 - memory) + gain`` with the discounted
    sum ``gain`` of (share of right guesses - expected). The largest weight decides, and a learning rate would not
    change which that is, so there is none.

    A draft is scored by guessing, and by the catch-up forward before it: on all of the text that it had not seen.
    Every resident draft with weights gets a round for this whenever ``interval`` tokens were committed since its last,
    in place of another draft with weights: never where a look-up guesses, which costs nothing.

    The resident drafts are a working set, brought in behind decoding at the start of a stream; nothing waits.

    Source: Freund and Schapire 1997, Hedge; full information from one verified text as in HedgeSpec; drafts that cannot
    guess now as in sleeping experts, Freund, Schapire, Singer and Warmuth 1997.

    Args:
        n_drafts: Drafts of the zoo.
        gamma: Draft length, one of ``GAMMAS``.
        stop: Stop level.
        memory: Factor on the logarithm of a weight for every committed token, above 0 and below 1.
        interval: Committed tokens after which a draft is scored again.
        name: Name in reports.
    """

    def __init__(
        self,
        n_drafts: int,
        gamma: int,
        stop: int = 0,
        memory: float = 0.98,
        interval: int = 256,
        name: str = "hedge",
    ) -> None:
        if n_drafts < 1:
            raise ValueError(f"hedge needs at least one draft, got {n_drafts}")
        if not 0.0 < memory < 1.0:
            raise ValueError(f"memory: expected a factor above 0 and below 1, got {memory}")
        if interval < 1:
            raise ValueError(f"interval: expected at least 1 token, got {interval}")
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._n, self._gamma, self._stop, self._memory, self._interval = n_drafts, gamma, stop, memory, interval
        self._working_set = WorkingSet(n_drafts)
        self.begin_stream()

    def begin_stream(self) -> None:
        self._working_set.begin_stream()
        self._expected: list[float] | None = None  # share of right guesses on the training split
        self._gain = [0.0] * self._n
        self._unscored = [self._interval] * self._n  # tokens committed since a draft's last round

    @property
    def log_weights(self) -> list[float]:
        """Logarithm of every draft's weight, up to a constant that all share."""
        expected = self._expected or [0.0] * self._n
        return [share / (1.0 - self._memory) + gain for share, gain in zip(expected, self._gain, strict=True)]

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, self._working_set.wanted(observation), reuse_kv=True)
        if self._expected is None:
            self._expected = observation.per_draft("acceptance").tolist()
        if observation.phase is not Phase.DECODE or not (able := able_drafts(observation, self._n, self._stop)):
            return rest
        return speculate(observation, self._next_draft(able, observation), self._gamma, self._stop, rest)

    def _next_draft(self, able: list[int], observation: Observation) -> int:
        weights, weightless = self.log_weights, observation.per_draft("weightless") > 0
        leader = max(able, key=lambda draft: weights[draft])
        due = [draft for draft in able if not weightless[draft] and self._unscored[draft] >= self._interval]
        if weightless[leader] or not due:
            return leader
        return max(due, key=lambda draft: (self._unscored[draft], weights[draft]))

    def learn(self, outcome: Outcome) -> None:
        if outcome.phase is not Phase.DECODE or outcome.round is None:
            return
        kept = self._memory**outcome.committed
        self._gain = [gain * kept for gain in self._gain]
        self._unscored = [tokens + outcome.committed for tokens in self._unscored]
        draft = outcome.decision.draft
        if draft is None or self._expected is None:
            return
        self._unscored[draft] = 0
        right, positions = outcome.round.evidence
        if positions:
            horizon = (1.0 - self._memory**positions) / (1.0 - self._memory)  # discounted positions
            self._gain[draft] += horizon * (right / positions - self._expected[draft])
