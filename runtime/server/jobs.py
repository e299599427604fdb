"""A request on its way through the server, and what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.core import Outcome, Phase, Request
from runtime.server.faults import ApiError


@dataclass
class Usage:
    """What a request took. Times in seconds.

    Attributes:
        prompt_tokens: Length of the prompt.
        completion_tokens: Committed tokens.
        reused_tokens: Prompt tokens taken from a stored prefix.
        disk_tokens: Of these, read from disk.
        rounds: Propose-verify-commit rounds.
        drafted: Guesses that were verified.
        accepted: Of those, committed.
        corrections: Tokens that rounds committed of the target's own.
        seconds: Device time, prefill included.
        plain_seconds: What plain decoding without reuse would take by the profile.
        stall_s: Of ``seconds``, waiting for loads.
        decide_s: Time of all decisions; not in ``seconds``.
        waited_s: From arrival to the device.
        ttft_s: From arrival to the first token.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    reused_tokens: int = 0
    disk_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    corrections: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    stall_s: float = 0.0
    decide_s: float = 0.0
    waited_s: float = 0.0
    ttft_s: float = 0.0

    def take(self, outcome: Outcome) -> None:
        """Add a step."""
        self.completion_tokens += outcome.committed
        self.reused_tokens += outcome.reused_tokens
        self.stall_s += outcome.stall_s
        if outcome.kv is not None:
            self.disk_tokens += outcome.kv.disk_tokens
        if outcome.phase is not Phase.COMPLETE:  # the text is out by then
            self.seconds += outcome.seconds
            self.plain_seconds += outcome.plain_seconds
        if outcome.round is not None:
            self.rounds += 1
            self.drafted += outcome.round.drafted
            self.accepted += outcome.round.accepted
            self.corrections += outcome.committed - outcome.round.accepted


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that became certain in a step; ``trace`` says how, if the request asked for it."""

    text: str
    trace: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The text has ended; ``reason`` is ``stop`` or ``length``."""

    reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no more text."""

    error: ApiError


Event = Delta | Finished | Failed


class Job:
    """A request, whose it is, and where its events go.

    Args:
        request: The request.
        client: Who is asked to take turns with others.
        trace: Whether to tell where tokens came from.
        emit: Takes its events; called from several threads, must return at once.
        arrived_s: When it came, on the clock of ``time.perf_counter``.
    """

    def __init__(
        self, request: Request, client: str, trace: bool, emit: Callable[[Event], None], arrived_s: float
    ) -> None:
        self.request, self.client, self.trace, self.arrived_s = request, client, trace, arrived_s
        self.given_up: ApiError | None = None
        self._emit, self._lock, self._over = emit, threading.Lock(), False

    @property
    def over(self) -> bool:
        """Whether its last event was sent."""
        return self._over

    def tell(self, event: Event) -> bool:
        """Send an event. False if the last one was sent before: there is one end only."""
        with self._lock:
            if self._over:
                return False
            self._over = not isinstance(event, Delta)
            self._emit(event)
            return True
