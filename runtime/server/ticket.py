"""A job as the server's own thread sees it: its events, its deadline, and whether its client is still there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.types import Receive

from runtime.core import Request
from runtime.server.faults import gone, too_slow
from runtime.server.jobs import Delta, Event, Job
from runtime.server.worker import Worker


class Ticket:
    """Hands a request to the worker and waits for what comes of it. Lives in the event loop's thread.

    Use as a context manager: whatever ends the block gives up a job that is not over.

    Args:
        worker: The worker.
        request: The request.
        client: Whose it is.
        trace: Whether to tell where tokens came from.
        timeout_s: Longest time until its end.
        receive: Tells when the client goes away; nobody else may listen to it.
    """

    def __init__(
        self, worker: Worker, request: Request, client: str, trace: bool, timeout_s: float, receive: Receive
    ) -> None:
        self._worker, self._timeout_s, self._receive = worker, timeout_s, receive
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.job = Job(request, client, trace, self._take, time.perf_counter())

    def __enter__(self) -> Ticket:
        self._worker.submit(self.job)
        self._deadline = self._loop.call_later(
            self._timeout_s, self._worker.give_up, self.job, too_slow(self._timeout_s)
        )
        self._watch = self._loop.create_task(self._until_gone())
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline.cancel()
        self._watch.cancel()
        self._worker.give_up(self.job, gone())

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events up to the last one; to be asked for once."""
        event: Event
        while True:
            event = await self._events.get()
            yield event
            if not isinstance(event, Delta):
                return

    def _take(self, event: Event) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._worker.give_up(self.job, gone())
