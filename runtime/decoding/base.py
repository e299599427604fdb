"""The contract between a session and whatever decodes: the real models, or a trace on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from runtime.core import Request, Round, StopRule


class Prefill(NamedTuple):
    """Result of ``Decoder.begin``.

    Attributes:
        token: The first committed token.
        prefill_tokens: Prompt tokens that were forwarded.
        reused_tokens: Prompt tokens that were taken from a stored prefix.
        guard_forwards: 1 if a near-tie behind the prefix made the whole prompt be forwarded after all.
    """

    token: int
    prefill_tokens: int
    reused_tokens: int
    guard_forwards: int = 0


class Clock(Protocol):
    """Seconds since some fixed start. The live clock is the wall; the replay clock moves only when work is done."""

    def now_s(self) -> float:
        """Current time. Device work issued before the call is finished when it returns."""
        ...


class Decoder(Protocol):
    """Decodes one request at a time. All methods take as long as the work takes, on the session's clock."""

    def begin(self, request: Request, reuse_tokens: int, stored: Sequence[Any]) -> Prefill:
        """Prefill a request and commit its first token. Forgets the request before.

        Args:
            request: The request; its prompt is forwarded from ``reuse_tokens`` on.
            reuse_tokens: Length of the stored prefix to use, below the prompt length; 0 = none.
            stored: Consecutive pieces of KV that together cover the prefix, from ``store``; never mutated.
        """
        ...

    def round(
        self, draft: int | None, payload: Any, gamma: int, threshold: float, rule: StopRule = StopRule.REACH
    ) -> Round:
        """One round: propose with the draft, verify, commit.

        Args:
            draft: Index of the draft; None = plain decoding.
            payload: What the loader delivered for this draft; None for plain.
            gamma: Most tokens to guess, at least 1 with a draft, already cut to the room left.
            threshold: What the rule compares with: below it guessing stops; 0 = never.
            rule: How sure a draft must be, see ``runtime.decoding.stop_rule``.
        """
        ...

    def catch_up_tokens(self, draft: int) -> int:
        """Committed tokens of this request that the draft has not absorbed (all of them if it never ran)."""
        ...

    def predicted(self) -> Any:
        """Topic predictor's acceptance of every draft over the next rounds, float32, shape (drafts,)."""
        ...

    def last_token(self) -> int:
        """The last committed token of the request in hand."""
        ...

    def lookup_confidence(self, draft: int) -> float:
        """For a draft without weights: calibrated probability of its first guess now, 0 if it has none; else NaN."""
        ...

    def store(self, start: int, end: int, piece: int) -> list[Any]:
        """Immutable copies of the KV of tokens ``start`` to ``end`` of ``stored_tokens``, for the KV store.

        Args:
            start: First token.
            end: Behind the last token; ``end - start`` is a multiple of ``piece``.
            piece: Tokens of every copy.
        """
        ...

    def stored_tokens(self) -> tuple[int, ...]:
        """Token ids whose KV ``store`` can copy: all that were forwarded and committed, in order."""
        ...

    def ended(self) -> bool:
        """Whether the text has ended: an ending token, a stop string, or all tokens that were asked for."""
        ...

    def forget_draft(self, draft: int) -> None:
        """The draft was evicted: its KV is gone."""
        ...
