"""Where requests wait for the device: bounded, and fair among clients.

    client a   [a1 a2 a3]        taken: a1 b1 c1 a2 b2 a3
    client b   [b1 b2]
    client c   [c1]

One device serves one request at a time. Clients take turns, whoever asked more often. When all places are taken, a
client with fewer waiting requests than another may have the place of that one's last request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What waits."""

    @property
    def client(self) -> str:
        """Whose it is."""
        ...


J = TypeVar("J", bound=Waiting)


class Full(Exception):
    """All places are taken."""


class WaitingRoom(Generic[J]):
    """A bounded queue between the server's thread and the device's. Every method may be called from any thread.

    Args:
        places: Most jobs that wait.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._changed = threading.Condition()  # guards everything below
        self._lines: OrderedDict[str, deque[J]] = OrderedDict()  # in the order of their turns
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return self._count()

    def add(self, job: J) -> J | None:
        """Let a job wait. Returns the job of another client that had to make room, if one had to.

        Raises:
            Full: If all places are taken, or the room is closed.
        """
        with self._changed:
            pushed_out = None
            if self._closed:
                raise Full
            if self._count() >= self._places:
                longest = max(self._lines, key=lambda client: len(self._lines[client]))
                if len(self._lines[longest]) < len(self._lines.get(job.client, ())) + 2:
                    raise Full
                pushed_out = self._lines[longest].pop()
            self._lines.setdefault(job.client, deque()).append(job)
            self._changed.notify_all()
            return pushed_out

    def take(self, timeout_s: float) -> J | None:
        """The next job in turn; None if there is none for so long, or the room is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._lines), timeout_s)
            if not self._lines:
                return None
            client, line = next(iter(self._lines.items()))
            job = line.popleft()
            self._lines.move_to_end(client)
            if not line:
                del self._lines[client]
            return job

    def next(self) -> J | None:
        """The job that ``take`` would give now."""
        with self._changed:
            return next(iter(self._lines.values()))[0] if self._lines else None

    def remove(self, job: J) -> bool:
        """Take a job out of its line. False if it does not wait."""
        with self._changed:
            line = self._lines.get(job.client)
            if line is None or job not in line:
                return False
            line.remove(job)
            if not line:
                del self._lines[job.client]
            return True

    def close(self, each: Callable[[J], object]) -> None:
        """Let nobody in any more; those who wait are given to ``each``."""
        with self._changed:
            self._closed = True
            left = [job for line in self._lines.values() for job in line]
            self._lines.clear()
            self._changed.notify_all()
        for job in left:
            each(job)

    def _count(self) -> int:
        return sum(map(len, self._lines.values()))
