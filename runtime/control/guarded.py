"""A guard around any controller: never much slower than plain decoding, and a heuristic where the policy is lost.

* **The floor.** Over any 1,000 tokens decoding takes at most 2% longer than plain decoding, whatever the controller
  does. A choice whose worst outcome would break that becomes the plain one (see ``runtime.control.floor``).
* **Drift.** Where rounds cost something else, or guesses are right at another rate, than the policy was trained for, a
  heuristic that goes by what it measures decides for a while; then the policy is tried again, later each time.
* **Pace.** The device may be faster or slower than when it was profiled. Now and then a round is decoded plain, to
  know (see ``runtime.control.pace``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from runtime.control.base import Controller
from runtime.control.drift import MEMORY_ROUNDS, Drift
from runtime.control.floor import Floor
from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, Floats, G, Observation, P
from runtime.control.pace import Pace
from runtime.core import GAMMAS, PLAIN, Decision, Outcome, Phase, Round
from runtime.profile import CostModel

LOGGER = logging.getLogger(__name__)

REST_TOKENS, LONGEST_REST = 500, 8000
"""Tokens for which the heuristic decides after a drift: at first, at most. Doubled while the drift is still there."""

DEARER_MEMORY = 0.9
"""Weight of what is known of a draft's costs against one more round."""

_ADMIT, _DECODE, _COMPLETE = Phase
_LOADS = GLOBAL_INDEX["loads_in_flight"]
_VERIFY = tuple(
    GLOBAL_INDEX[f"verify_ratio_{next(longer for longer in GAMMAS if longer >= gamma)}"]
    for gamma in range(GAMMAS[-1] + 1)
)
"""Where the verify cost of so many guesses is, or of the next length there is."""
_WEIGHTLESS, _LOAD_LEFT, _CATCH_UP, _STEP = (
    G + DRAFT_INDEX[name] for name in ("weightless", "load_left", "catch_up_cost", "step_ratio")
)
"""Where these are of the first draft."""


@dataclass
class GuardCounters:
    """What the guard did.

    Attributes:
        probes: Rounds decoded plain to measure the device's pace.
        floor_rounds: Rounds decoded plain to keep the floor.
        floor_loads: Loads refused to keep the floor.
        floor_kv: KV choices refused to keep the floor.
        fallbacks: Times the heuristic took over.
        fallback_tokens: Tokens decoded under it.
    """

    probes: int = 0
    floor_rounds: int = 0
    floor_loads: int = 0
    floor_kv: int = 0
    fallbacks: int = 0
    fallback_tokens: int = 0


class GuardedController:
    """Lets ``inner`` decide as long as that is safe.

    Args:
        inner: The controller to be watched.
        fallback: Decides while ``inner`` is out of its depth; it should go by what it measures.
        costs: The device's profile.
    """

    def __init__(self, inner: Controller, fallback: Controller, costs: CostModel) -> None:
        self.name = inner.name
        self.counters = GuardCounters()
        self.reason: str | None = None
        self._inner, self._fallback, self._costs = inner, fallback, costs
        self._floor, self._pace, self._drift = Floor(), Pace(), Drift()
        self._step_s = costs.plain_s(costs.profile.reference_context)
        self._contention = costs.profile.decode_slowdown - 1.0
        self._guess_s = [costs.draft_s(draft, 1) for draft in range(len(costs.costs))]
        self._verify_s = [
            costs.forward_s(1 + drafted, costs.profile.reference_context) + costs.profile.round_overhead_s
            for drafted in range(GAMMAS[-1] + 1)
        ]
        self._dearer = [1.0] * len(costs.costs)
        self._loading = False
        self._rest, self._next_rest = 0, REST_TOKENS

    def begin_stream(self) -> None:
        self._inner.begin_stream()
        self._fallback.begin_stream()

    @property
    def falling_back(self) -> bool:
        """Whether the heuristic decides now."""
        return self._rest > 0

    @property
    def lost_steps(self) -> float:
        """What the worst run of recent tokens has lost against plain decoding, in plain steps."""
        return self._floor.lost

    def decide(self, observation: Observation) -> Decision:
        self._loading = observation.vector.item(_LOADS) > 0
        decision = (self._fallback if self._rest > 0 else self._inner).decide(observation)
        if observation.phase is _DECODE:
            if decision.draft is not None:
                decision = self._safe_round(observation, decision, decision.draft)
        elif decision.kv and not self._floor.allows(self._kv_loss(observation)):
            self.counters.floor_kv += 1
            decision = decision._replace(kv=False)
        if decision.prefetch is not None:
            if self._floor.allows(self._load_loss(observation, decision.prefetch)):
                self._loading = True
            else:
                self.counters.floor_loads += 1
                decision = decision._replace(prefetch=None)
        return decision

    def learn(self, outcome: Outcome) -> None:
        (self._fallback if self._rest > 0 else self._inner).learn(outcome)
        if outcome.cancelled:
            return
        committed = len(outcome.tokens)
        if outcome.phase is not _DECODE:
            self._floor.note(committed, self._loss(outcome))
        elif outcome.round is not None and committed:
            self._learn_round(outcome, outcome.round, committed)
        self._count_rest(committed)

    # -- what may be done ------------------------------------------------------------------------------------------

    def _safe_round(self, observation: Observation, decision: Decision, draft: int) -> Decision:
        if self._pace.wants_plain and not self._loading:
            self.counters.probes += 1
        else:
            steps = self._round_steps(observation.vector, decision, draft)
            if self._floor.allows(steps * max(1.0, self._dearer[draft]) - 1.0):  # one token is certain
                return decision
            self.counters.floor_rounds += 1
        return decision._replace(draft=None, gamma=0, stop=PLAIN.stop, wait=False)

    def _round_steps(self, vector: Floats, decision: Decision, draft: int) -> float:
        """Most that the round takes by the profile, in plain steps."""
        seen, row = vector.item, draft * P
        forwards = 1 if seen(row + _WEIGHTLESS) else decision.gamma
        load = seen(row + _LOAD_LEFT) if decision.wait else 0.0
        return load + seen(row + _CATCH_UP) + forwards * seen(row + _STEP) + seen(_VERIFY[decision.gamma])

    def _load_loss(self, observation: Observation, draft: int) -> float:
        """What decoding loses to a load beside it, in plain steps."""
        return observation.of_draft("load_left", draft) * self._contention

    def _kv_loss(self, observation: Observation) -> float:
        """What copying KV out, or waiting for the disk, may cost, in plain steps."""
        if observation.phase is _COMPLETE:
            return self._costs.kv_store_s(int(observation.value("context_tokens"))) / self._step_s
        disk = int(observation.value("usable_disk_tokens"))
        return self._costs.kv_load_s(disk) / self._step_s if disk else 0.0

    # -- what came of it -------------------------------------------------------------------------------------------

    def _learn_round(self, outcome: Outcome, done: Round, committed: int) -> None:
        draft, seconds, plain_seconds = outcome.decision.draft, outcome.seconds, outcome.plain_seconds
        if draft is None:
            if not self._loading:
                self._pace.plain(seconds, plain_seconds)
            self._floor.note(committed, self._loss(outcome) if self._loading else 0.0)
            return
        pace, plain_s = self._pace.factor, plain_seconds / committed
        step_s, expected_s = plain_s * pace, self._round_s(draft, plain_s, done) * pace
        self._floor.note(committed, (seconds - committed * step_s) / step_s)
        self._pace.speculative(seconds, expected_s)
        self._dearer[draft] += (1.0 - DEARER_MEMORY) * (seconds / expected_s - self._dearer[draft])
        self._drift.note(seconds, expected_s, done.accepted > 0, done.confidence)

    def _round_s(self, draft: int, plain_s: float, done: Round) -> float:
        """What the round should have taken by the profile, for the guesses that were made; ``plain_s`` each token."""
        longer_s = plain_s - self._step_s  # reading the KV of a longer context
        guess_s, behind = self._guess_s[draft], done.catch_up_tokens
        first_s = self._costs.draft_s(draft, 1 + behind) if behind else guess_s
        draft_s = first_s + max(0, done.steps - 1) * guess_s
        return draft_s + (self._verify_s[done.drafted] + longer_s) + done.guard_forwards * plain_s

    def _loss(self, outcome: Outcome) -> float:
        """Of a step whose counterpart in plain decoding is known, in plain steps at the reference context."""
        if outcome.phase is _ADMIT and not outcome.reused_tokens:
            return 0.0  # plain decoding's own prefill
        step_s = self._step_s * self._pace.factor
        return (outcome.seconds - outcome.plain_seconds * self._pace.factor) / step_s

    def _count_rest(self, tokens: int) -> None:
        if self.falling_back:
            self.counters.fallback_tokens += tokens
            self._rest -= tokens
            if not self.falling_back:
                self._drift = Drift()
                LOGGER.info("%s decides again, to see whether it fits now", self.name)
            return
        reason = self._drift.reason
        if reason is None:
            if self.reason is not None and self._drift.right.rounds >= MEMORY_ROUNDS:
                self.reason, self._next_rest = None, REST_TOKENS
            return
        self.counters.fallbacks += 1
        if self.reason is None:
            LOGGER.warning("%s does not fit what is going on: %s; %s decides instead, %s is tried again later",
                           self.name, reason, self._fallback.name, self.name)  # fmt: skip
        self.reason = reason
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
