"""One answer: driving a session through a request, stopping at Ctrl-C, and what there is to tell of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.cli.printer import Printer
from runtime.cli.text_options import TextSettings
from runtime.control.base import Controller
from runtime.core import Outcome, Phase, Request
from runtime.decoding.stopping import has_ended, trim
from runtime.session import DecodeSession

if TYPE_CHECKING:
    from runtime.live import LiveModels


class Answer(NamedTuple):
    """What came of a request.

    Attributes:
        tokens: Committed token ids.
        cancelled: Whether it was interrupted before its end.
    """

    tokens: list[int]
    cancelled: bool


def make_request(models: LiveModels, prompt_ids: Sequence[int], settings: TextSettings) -> Request:
    """A request for a prompt."""
    eos_ids = frozenset(models.zoo.target.eos_ids)
    return Request(
        "prompt", tuple(prompt_ids), settings.max_tokens, eos_ids, sampling=settings.sampling, stop=settings.stop
    )


def steps(session: DecodeSession, controller: Controller) -> Iterator[Outcome]:
    """Drive a session that was started to the end of its requests, step by step."""
    finished = False
    while not finished:
        outcome = session.advance(controller.decide(session.observe()))
        controller.learn(outcome)
        yield outcome
        finished = outcome.stream_finished


def answer(session: DecodeSession, controller: Controller, request: Request, printer: Printer | None) -> Answer:
    """Run one request to its end, or to the first Ctrl-C.

    The second Ctrl-C breaks in at once: the session then still holds the request.
    """
    tokens: list[int] = []
    cancelled = False
    session.start([request])
    with _cancelled_by_interrupt(session):
        try:
            for outcome in steps(session, controller):
                tokens += outcome.tokens
                cancelled |= outcome.cancelled
                if printer is not None and outcome.phase is not Phase.COMPLETE:
                    printer.show(outcome)
        except KeyboardInterrupt:  # the second one, or one that no handler could take
            cancelled = True
    if printer is not None:
        printer.finish()
    return Answer(tokens, cancelled)


@contextmanager
def _cancelled_by_interrupt(session: DecodeSession) -> Iterator[None]:
    """Let the first Ctrl-C cancel the request; the second one interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return

    def cancel(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        session.cancel()

    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def as_json(models: LiveModels, request: Request, given: Answer) -> dict[str, Any]:
    """Text (without the stop string), token ids, and why the text ended: stop, length or cancelled."""
    text, tokens = models.decode(given.tokens), given.tokens
    stopped = has_ended(tokens, request.eos_ids, text, request.stop)
    reason = "cancelled" if given.cancelled else "stop" if stopped else "length"
    return {"text": trim(text, request.stop), "tokens": tokens, "finish_reason": reason}
