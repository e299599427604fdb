"""Timed answers: every controller answers every prompt, in turn, on the real models.

    pass 1    prompt 1:  A B C    prompt 2:  B C A    prompt 3:  C A B    ...
    pass 2    the same with fresh controllers and empty memory

A pass is a stream of requests, as a device sees it: the drafts a controller brought into memory stay there from prompt
to prompt. Every controller has a session and a memory of its own over the one target. Taking turns, all of them meet
the same moods of the machine. Loads that are still under way when an answer ends are waited for, outside of any
timing, so that they disturb nobody else's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never

from tqdm import tqdm

from runtime.bundle import Bundle
from runtime.cli.answering import steps
from runtime.cli.common import controller_named, session_arguments
from runtime.cli.counts import since, snapshot
from runtime.control.base import Controller
from runtime.core import Counters, Request
from runtime.profile import CostModel
from runtime.session import DecodeSession

if TYPE_CHECKING:
    from runtime.live import LiveModels

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Run:
    """One prompt answered under one controller.

    Attributes:
        controller: Its name.
        prompt: Index of the prompt.
        turn: Which pass, from 0.
        tokens: What was written.
        seconds: From the arrival of the request until it was done with, decisions and keeping KV included.
        ttft_s: Until the first token.
        counters: What was counted meanwhile.
    """

    controller: str
    prompt: int
    turn: int
    tokens: tuple[int, ...]
    seconds: float
    ttft_s: float
    counters: Counters


@dataclass(frozen=True)
class Lane:
    """A controller with a session of its own."""

    name: str
    session: DecodeSession
    controller: Controller


@dataclass(frozen=True)
class Track:
    """Where controllers run: a target in memory and the bundle that belongs to it.

    Attributes:
        unguarded: Whether the policy stands without its guard.
    """

    models: LiveModels
    bundle: Bundle
    costs: CostModel
    unguarded: bool = False

    def lane(self, name: str, stack: ExitStack) -> Lane:
        """A fresh controller over a fresh session, open as long as the stack.

        Raises:
            UserError: If there is no such controller.
        """
        from runtime.live import open_session  # here, because the import takes seconds

        controller = controller_named(name, self.bundle, self.costs, self.unguarded)
        session = stack.enter_context(open_session(self.models, *session_arguments(self.bundle, self.costs)))
        controller.begin_stream()
        return Lane(name, session, controller)


def measure(
    track: Track, names: Sequence[str], requests: Sequence[Request], repeat: int, done: Callable[[], object]
) -> list[Run]:
    """Answer every request under every controller.

    Args:
        track: Where.
        names: The controllers.
        requests: One a prompt.
        repeat: Passes.
        done: Called after every answer.
    """
    runs = []
    for turn in range(repeat):
        with ExitStack() as stack:
            lanes = [track.lane(name, stack) for name in names]
            for index, request in enumerate(requests):
                first = (index + turn) % len(lanes)
                for lane in (*lanes[first:], *lanes[:first]):
                    runs.append(timed(lane, request, index, turn))
                    _settle(lane.session)
                    done()
    return runs


def warm_up(track: Track, request: Request) -> None:
    """Write a few tokens plainly: the first forwards of a process take longer."""
    with ExitStack() as stack:
        timed(track.lane("plain", stack), request, 0, 0)


def timed(lane: Lane, request: Request, prompt: int, turn: int) -> Run:
    """Answer a request and measure it. The session's clock waits for the device in every step."""
    session = lane.session
    before, tokens, ttft_s = snapshot(session.counters), list[int](), 0.0
    started_s = time.perf_counter()
    session.start([request])
    for outcome in steps(session, lane.controller):
        if not tokens and outcome.tokens:
            ttft_s = time.perf_counter() - started_s
        tokens += outcome.tokens
    seconds = time.perf_counter() - started_s
    counted = since(before, session.counters)
    return Run(lane.name, prompt, turn, tuple(tokens), seconds, ttft_s, counted)


def progress_bar(total: int) -> tqdm[Never]:
    """A bar of so many answers; nothing where stderr is no terminal."""
    return tqdm(total=total, desc="bench", unit="answers", disable=None, leave=False)


def _settle(session: DecodeSession) -> None:
    """Wait for the loads that are under way."""
    for draft in range(len(session.drafts)):
        if session.memory.loading(draft):
            session.memory.loader.wait(draft)
    session.memory.poll()
