"""What every request passes before anything looks at it: host name, key, size."""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.server.config import ServerConfig
from runtime.server.faults import ApiError
from runtime.server.metrics import Metrics

OPEN = frozenset({"/", "/health", "/page/style.css", "/page/app.js"})
"""Paths that need no key: they tell nothing of what is served to whom."""

KNOWN = OPEN | {"/metrics", "/state", "/openapi.json", "/v1/models", "/v1/completions", "/v1/chat/completions"}
DISCARDED_TIMES = 32
"""Of a body that is too large so many times the limit is read and thrown away, so that the client hears the answer."""


class Gate:
    """ASGI middleware.

    Args:
        app: What lies behind.
        config: Keys, hosts, limits.
        metrics: Where answers are counted.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._hosts = config.hosts
        self._keys = [_digest(key.encode()) for key in config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, counted = Headers(scope=scope), self._counted(scope, send)
        try:
            self._refuse_unless_addressed(headers)
            scope.setdefault("state", {})["client"] = self._client(scope, headers)
            async with asyncio.timeout(self._config.body_timeout_s):
                body = await self._body(headers, receive)
        except TimeoutError:
            late = ApiError(408, f"the body took longer than {self._config.body_timeout_s:g} s", "body_timeout")
            await late.response()(scope, receive, counted)
            return
        except ApiError as error:
            await error.response()(scope, receive, counted)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), counted)

    def _refuse_unless_addressed(self, headers: Headers) -> None:
        name = _host_name(headers.get("host", ""))
        if self._hosts is not None and name not in self._hosts:
            message = f"this server is not called {name[:100]!r}: use http://127.0.0.1, or start it with --allow-host"
            raise ApiError(403, message, "wrong_host")

    def _client(self, scope: Scope, headers: Headers) -> str:
        """Who takes turns with whom: a key if there are several, else an address."""
        address = scope["client"][0] if scope.get("client") else "unknown"
        if not self._keys or scope["path"] in OPEN:
            return str(address)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip().encode("latin-1", "replace"))
        matches = [hmac.compare_digest(digest, key) for key in self._keys]  # all of them, whichever fits
        if scheme.lower() != "bearer" or not any(matches):
            message = "Incorrect API key provided." if given else "You didn't provide an API key."
            header = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, f"{message} Send it as 'Authorization: Bearer KEY'.", "invalid_api_key", headers=header)
        return str(address) if len(self._keys) == 1 else f"key {matches.index(True)}"

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """All of the body; None if the client went away.

        Raises:
            ApiError: If it is too large.
        """
        limit, parts, size = self._config.max_body_bytes, [], 0
        declared = headers.get("content-length", "0")
        most = limit * DISCARDED_TIMES
        hopeless = declared.isdecimal() and int(declared[:20]) > most
        more = not hopeless
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            size += len(message.get("body", b""))
            if size <= limit:
                parts.append(message.get("body", b""))
            more = message.get("more_body", False) and size <= most
        if size > limit or hopeless:
            raise ApiError(413, f"the request body is larger than {limit} bytes", "request_too_large")
        return b"".join(parts)

    def _counted(self, scope: Scope, send: Send) -> Send:
        path = scope["path"] if scope["path"] in KNOWN else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.http.labels(path, str(message["status"])).inc()
                message = {**message, "headers": [*message.get("headers", []), (b"x-content-type-options", b"nosniff")]}
            await send(message)

        return counted


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message; what comes after it is the client's going away."""
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay


def _digest(key: bytes) -> bytes:
    """Of equal length for all keys, so that a comparison says nothing of theirs."""
    return hashlib.sha256(key).digest()


def _host_name(host: str) -> str:
    """The name in a ``Host`` header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
