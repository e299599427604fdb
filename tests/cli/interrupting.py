"""Ctrl-C in the middle of a step, for tests of commands that answer."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from runtime.core import Decision, Outcome
from runtime.session import DecodeSession


def interrupt_at(step: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C in the middle of a session's step, so many times."""
    advance: Callable[[DecodeSession, Decision], Outcome] = DecodeSession.advance
    done = 0

    def interrupted(self: DecodeSession, decision: Decision) -> Outcome:
        nonlocal done
        done += 1
        for _ in range(times if done == step else 0):
            signal.raise_signal(signal.SIGINT)
        return advance(self, decision)

    monkeypatch.setattr(DecodeSession, "advance", interrupted)
