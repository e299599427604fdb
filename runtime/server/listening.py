"""The socket, the signals, and a shutdown that finishes what was begun."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from runtime.errors import UserError
from runtime.live import Served
from runtime.server.app import Service, create_app
from runtime.server.chat import PromptReader
from runtime.server.config import ServerConfig
from runtime.server.metrics import Metrics
from runtime.server.worker import Opener, Worker

EXIT_AT_ONCE = 130
BACKLOG = 2048
"""Connections that the system keeps until the server takes them."""
JOIN_S = 15.0
"""How long the device's thread may take to end once its request was cancelled; KV on its way to disk is written."""


class Server(uvicorn.Server):
    """uvicorn with other manners at its end.

    The first Ctrl-C or SIGTERM lets the request in hand finish, the second ends the process at once.

    Args:
        app: The application.
        config: How to run it.
        closing: Called when the end begins; must return at once.
    """

    def __init__(self, app: FastAPI, config: ServerConfig, closing: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=config.grace_s,
                lifespan="off",
                ws="none",
            )
        )
        self._closing = closing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            sys.stdout.flush()
            os._exit(EXIT_AT_ONCE)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn, but a signal is not raised again: the end it asked for has come."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to an address.

    Raises:
        UserError: If the address is taken, or none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror or error}): another program may use it; choose "
            "another --port or --host"
        ) from None
    return listener


def give_up_stuck_connections(listener: socket.socket, seconds: float) -> None:
    """Have the system end a connection whose client takes nothing of what was sent to it for so long.

    The server itself only stops writing to it; what lies in its buffers would keep the connection for ever.
    """
    if sys.platform.startswith("linux"):  # accepted connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(seconds * 1000)))


def url_of(listener: socket.socket) -> str:
    """Where a bound socket is called."""
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def service_over(
    served: Served, config: ServerConfig, worker: Worker, metrics: Metrics, info: Mapping[str, str]
) -> Service:
    """The service over what a worker has opened.

    Args:
        served: What it opened.
        config: How the server is run.
        worker: The worker.
        metrics: Where everything is counted.
        info: ``bundle`` and ``policy`` (a hash), for people.
    """
    models = served.models
    target = models.zoo.target
    names = {"model": config.model, "zoo": models.zoo.name, "controller": served.controller.name, **info}
    metrics.info.info(names)
    return Service(
        config=config,
        worker=worker,
        metrics=metrics,
        reader=PromptReader(models.tokenizer, models.target.vocab_size),
        context_tokens=models.target.context_limit + 1,
        eos_ids=frozenset(target.eos_ids),
        fingerprint=f"sp_{target.fingerprint[:8]}{info.get('policy', '')[:8]}",
        created=int(time.time()),
        info={**names, "drafts": list(models.zoo.draft_names), "context_tokens": models.target.context_limit + 1},
    )


def serve(
    open_: Opener,
    config: ServerConfig,
    info: Mapping[str, str],
    ready: Callable[[str], None],
    started: Callable[[Server], Any] = lambda server: None,
) -> int:
    """Serve until a signal. Returns the exit code.

    Args:
        open_: Opens what is served.
        config: How the server is run.
        info: As ``service_over``.
        ready: Called with the server's address once it can be called.
        started: Called with the server before it runs.

    Raises:
        UserError: If the address cannot be had or the models cannot be opened.
    """
    listener = bound(config.host, config.port)
    give_up_stuck_connections(listener, 2 * config.write_timeout_s)  # the server stops writing first, and says so
    metrics = Metrics()
    worker = Worker(open_, metrics, config.queue, config.keep_free_bytes)
    try:
        served = _opened(worker)
        service = service_over(served, config, worker, metrics, info)
        server = Server(create_app(service), config, worker.drain)
        started(server)
        _listen(listener, config)
        ready(url_of(listener))
        server.run([listener])
    finally:
        listener.close()
        ended = not worker.started or worker.stop(JOIN_S)
    if not ended:
        os._exit(EXIT_AT_ONCE)  # a thread inside a forward cannot be joined, and must not see modules go away
    return 0


def _listen(listener: socket.socket, config: ServerConfig) -> None:
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        where = f"{config.host} port {config.port}"
        raise UserError(f"cannot listen on {where} ({error}): choose another --port") from None


def _opened(worker: Worker) -> Served:
    """Wait for the models; an impatient user ends the process, since a thread that opens them cannot be stopped."""
    try:
        return worker.start()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(EXIT_AT_ONCE)
