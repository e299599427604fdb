"""The books of a session, checked after every step.

Every committed token has one origin: it was admitted (the prefill's), accepted (a guess) or a correction (the target's
own, one a round).
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.core import Counters, Outcome, Phase


@dataclass(slots=True)
class Tally:
    """Counts of one request; the fields mean what they mean in ``Counters``."""

    drafted: int = 0
    accepted: int = 0
    corrections: int = 0
    admitted: int = 0
    committed: int = 0


def count_tokens(total: Counters, tally: Tally, outcome: Outcome, generated: int, ended: bool) -> None:
    """Add a step to the totals and to its request, and check both.

    Args:
        total: The session's totals; their token counts are changed.
        tally: The request's counts; changed.
        outcome: The step.
        generated: Tokens of the request's text as the session knows it.
        ended: Whether the text ended with this step.

    Raises:
        RuntimeError: If a decoder reported counts that cannot be, with all of them.
    """
    step = outcome.round
    for books in (total, tally):
        _take(books, outcome)
    if step is not None:
        own = outcome.committed - step.accepted
        whole = own == 1 or (own == 0 and ended)
        if not whole or not 0 <= step.accepted <= step.drafted or outcome.tokens != step.tokens:
            raise RuntimeError(
                f"a round reported {step.drafted} drafted, {step.accepted} accepted and {len(step.tokens)} committed "
                f"tokens (the step: {outcome.committed}; text ended: {ended}): expected accepted <= drafted, and "
                "accepted + 1 committed, or accepted where the text ended"
            )
    _refuse_unless_balanced("the session", total)
    _refuse_unless_balanced("the request", tally)
    if tally.committed != generated:
        raise RuntimeError(f"the request's text has {generated} tokens, its steps committed {tally.committed}: {tally}")


def count_costs(total: Counters, outcome: Outcome) -> None:
    """Add what a step cost, and what stored KV did."""
    if outcome.round is not None:
        total.rounds += 1
        total.guard_forwards += outcome.round.guard_forwards
    if outcome.kv is not None:
        total.kv_disk_tokens += outcome.kv.disk_tokens
        total.kv_saved_s += outcome.kv.saved_s
        total.kv_retained_bytes += outcome.kv.retained_bytes
    total.guard_forwards += outcome.guard_forwards
    total.cancelled += outcome.cancelled
    total.seconds += outcome.seconds
    total.stall_s += outcome.stall_s
    total.kv_hit_tokens += outcome.reused_tokens
    total.prefill_tokens += outcome.prefill_tokens
    total.illegal += outcome.illegal


def _take(books: Counters | Tally, outcome: Outcome) -> None:
    committed, step = outcome.committed, outcome.round
    books.committed += committed
    if step is not None:
        books.drafted += step.drafted
        books.accepted += step.accepted
        books.corrections += committed - step.accepted
    elif outcome.phase is Phase.ADMIT:
        books.admitted += committed


def _refuse_unless_balanced(what: str, books: Counters | Tally) -> None:
    parts = books.admitted + books.accepted + books.corrections
    if books.committed != parts or books.drafted < books.accepted:
        raise RuntimeError(
            f"counters of {what} do not add up: {books.committed} committed, {books.admitted} admitted + "
            f"{books.accepted} accepted + {books.corrections} corrections = {parts}; {books.drafted} drafted, expected "
            "at least as many as were accepted"
        )
