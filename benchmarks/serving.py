"""``specpilot serve`` in a process of its own, as users run it, for what is measured from outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import UserError

GREETING = re.compile(r"serving (\S+) at (\S+)")
STOP_S = 60.0
"""How long the server may take to end when it is asked to."""


@dataclass(frozen=True)
class Serving:
    """A server that can be called.

    Attributes:
        process: The process.
        model: Name that requests give.
        url: Where it is called.
        listening_s: Seconds from its start until it could be called.
    """

    process: subprocess.Popen[str]
    model: str
    url: str
    listening_s: float

    def state(self) -> dict[str, Any]:
        """What ``/state`` says."""
        with _open(f"{self.url}/state") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def metrics(self) -> dict[str, float]:
        """Every sample of ``/metrics``, by name and labels."""
        with _open(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[0] != "#"}

    def kill(self) -> None:
        """As ``kill -9``."""
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(bundle: Path, options: Sequence[str], log: Path) -> Iterator[Serving]:
    """A server until the end of the block.

    Args:
        bundle: What is served.
        options: Further options of ``specpilot serve``.
        log: Where its messages go, behind what is there.

    Raises:
        UserError: If it does not start.
    """
    command = [sys.executable, "-m", "runtime.cli", "serve", "--bundle", str(bundle), "--port", "0", *options]
    log.parent.mkdir(parents=True, exist_ok=True)
    started_s = time.perf_counter()
    with log.open("a") as messages, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=messages, text=True
    ) as process:  # fmt: skip
        try:
            first = process.stdout.readline() if process.stdout else ""
            found = GREETING.match(first)
            if found is None:
                raise UserError(f"the server did not start ({first.strip() or 'it said nothing'}): see {log}")
            yield Serving(process, found[1], found[2], time.perf_counter() - started_s)
            process.terminate()
            process.wait(STOP_S)
        finally:
            process.kill()


def _open(url: str) -> Any:
    """No proxy stands before this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60)
