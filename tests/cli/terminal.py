"""A program at a terminal that tests type into."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType


class Terminal:
    """Runs a program that believes a person sits there.

    Args:
        command: Program and arguments.
        folder: Where it runs.
        environment: Variables added to this process's own.
    """

    def __init__(self, command: Sequence[str], folder: Path, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TERM": "xterm", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Type on the keyboard."""
        os.write(self._ours, text.encode())

    def read_until(self, end: str, seconds: float = 10.0) -> str:
        """What is shown until ``end`` comes; fails if it does not come in time."""
        seen, last_s = "", time.monotonic() + seconds
        while end not in seen:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, last_s - time.monotonic()))
            assert ready, f"{end!r} did not come, but {seen!r}"
            seen += os.read(self._ours, 4096).decode(errors="replace")
        return seen
