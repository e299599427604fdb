"""``specpilot chat`` as a person meets it: a process at a terminal, and real signals."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.tiny_zoo import TinyZoo

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_conversation_at_a_terminal(tiny_zoo: TinyZoo) -> None:
    command = [sys.executable, "-m", "runtime.cli", "chat", "--bundle", str(tiny_zoo.bundle), "--threads", "1"]
    with Terminal([*command, "--max-tokens", "5", "--show-source", "--controller", "static:lookup:4"], ROOT) as person:
        greeting = person.read_until("> ", 120.0)
        assert "tiny answers, static:lookup:4 decides" in greeting and "guessed by: \x1b[36mone" in greeting
        person.type("w5 w17 w3 w5 w17\n")
        assert "cut off after --max-tokens 5" in person.read_until("\n> ", 30.0)
        person.process.send_signal(signal.SIGINT)
        person.read_until("Ctrl-D or /quit ends")
        person.type("\x1b[A")  # the arrow up brings the message back
        person.read_until("w5 w17 w3 w5 w17")
        person.type("\n")
        person.read_until("\n> ", 30.0)
        person.type("/stats\n")
        shown = person.read_until("peak_budget_mb")
        assert "turns              2" in shown
        person.type("\x04")
        assert person.process.wait(30.0) == 0
