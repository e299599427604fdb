"""Where a session is: the request in hand and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.core import DEFAULT_DECISION_INTERVAL, DraftSpec, Phase, Request
from runtime.memory.kv_store import Match

HIT_START, HIT_DECAY = 0.5, 0.8
"""Share of a prompt expected to be stored before any request, and the weight it keeps at each."""
EVIDENCE_DECAY = 0.93
"""Weight that an acceptance estimate keeps for each further scored token."""


@dataclass(slots=True)
class State:
    """What the session, the rules and the observation share.

    Attributes:
        interval: Rounds between two decisions about prefetching.
        phase: What is decided next.
        request: The request in hand; None = nothing to do.
        match: The stored prefix of its prompt that could be used.
        generated: Tokens of its text so far.
        since_decision: Rounds since prefetching was last decided.
        last_drafted: Tokens verified in the last round.
        last_accepted: Tokens accepted in the last round.
    """

    interval: int = DEFAULT_DECISION_INTERVAL
    phase: Phase = Phase.COMPLETE
    request: Request | None = None
    match: Match = field(default_factory=Match)
    generated: int = 0
    since_decision: int = 0
    last_drafted: int = 0
    last_accepted: int = 0

    def admit(self, request: Request, match: Match) -> None:
        """A new request is in hand."""
        self.phase, self.request, self.match = Phase.ADMIT, request, match
        self.generated = self.last_drafted = self.last_accepted = 0
        self.since_decision = self.interval

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt; 0 without a request."""
        return 0 if self.request is None else len(self.request.prompt_ids)

    @property
    def context(self) -> int:
        """Prompt and text so far, tokens."""
        return self.prompt_tokens + self.generated

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return 0 if self.request is None else self.request.max_new_tokens - self.generated

    @property
    def may_prefetch(self) -> bool:
        """Whether prefetching may be decided now."""
        return self.phase is not Phase.COMPLETE and self.since_decision >= self.interval


class Evidence:
    """What was seen of every draft. Outlives requests.

    Attributes:
        acceptance: Recent share of right guesses, float32, shape (drafts,).
        confidence: Calibrated probability of the last first guess, float32, shape (drafts,).
        seen_at: Tokens committed in all when a draft was last scored, float32, shape (drafts,).
        hit_share: Recent share of a prompt that was found stored.
    """

    def __init__(self, drafts: tuple[DraftSpec, ...]) -> None:
        self.acceptance: npt.NDArray[np.float32] = np.array([d.expected for d in drafts], dtype=np.float32)
        self.confidence = self.acceptance.copy()
        self.seen_at = np.zeros(len(drafts), dtype=np.float32)
        self.hit_share = HIT_START

    def note_request(self, usable_share: float) -> None:
        """Take in a request that arrived, with the share of its prompt that was stored."""
        self.hit_share = HIT_DECAY * self.hit_share + (1.0 - HIT_DECAY) * usable_share

    def note(self, draft: int, matches: int, positions: int, confidence: float, committed: int) -> None:
        """Take in ``matches`` right guesses out of ``positions``; a confidence of NaN says nothing."""
        if positions:
            kept = EVIDENCE_DECAY**positions
            self.acceptance[draft] = self.acceptance[draft] * kept + (1.0 - kept) * matches / positions
            self.seen_at[draft] = committed
        if confidence == confidence:  # not NaN
            self.confidence[draft] = confidence
