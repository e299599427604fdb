"""Server-sent events: one JSON object a line, sent as it comes, and no slower reader than the server can bear."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

LOGGER = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """An object as an event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Sends events as they come.

    Args:
        events: The events, as bytes.
        write_timeout_s: Longest time that the client may read nothing while its buffers are full.
        until: Left at the end, whatever ends the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], write_timeout_s: float, until: AbstractContextManager[object]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._write_timeout_s, self._until = events, write_timeout_s, until

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._until:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for data in self._events:
                    async with asyncio.timeout(self._write_timeout_s):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                async with asyncio.timeout(self._write_timeout_s):
                    await send({"type": "http.response.body", "body": b""})
            except TimeoutError:
                LOGGER.warning("a client read nothing for %g s: its stream is given up", self._write_timeout_s)
