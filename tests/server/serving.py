"""A real server over the tiny bundle: real socket, real worker thread, in this process."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from openai import DefaultHttpxClient, OpenAI

from runtime.bundle import read_bundle
from runtime.cli.common import opener
from runtime.control.base import Controller
from runtime.control.observation import Observation
from runtime.core import Decision, Outcome
from runtime.live import Served
from runtime.server.config import ServerConfig
from runtime.server.listening import Server, serve
from runtime.server.worker import Opener

MODEL = "tiny"
PROMPT = "w5 w17 w3 w44 w9 w17 w3 w44"
PATIENCE_S = 120.0
"""Far more than anything takes, on a machine that does other things."""


@dataclass
class Running:
    """A server that runs."""

    url: str
    server: Server
    thread: threading.Thread
    code: list[int]

    def client(self, key: str = "none", **more: Any) -> OpenAI:
        """The official client, unchanged; to be closed."""
        http = DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S)
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, http_client=http, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", trust_env=False, timeout=PATIENCE_S, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", trust_env=False, timeout=PATIENCE_S, **more)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/state").json()
        return found

    def draft_state(self, name: str) -> str:
        (state,) = (draft["state"] for draft in self.state()["memory"]["drafts"] if draft["name"] == name)
        return str(state)

    def metric(self, line: str) -> float:
        """Value of the sample that begins with ``line``; 0 if there is none."""
        for sample in self.get("/metrics").text.splitlines():
            if sample.startswith(f"{line} "):
                return float(sample.rpartition(" ")[2])
        return 0.0

    def stop(self) -> int:
        """As after Ctrl-C; the exit code."""
        self.server.should_exit = True
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the server does not end"
        return self.code[0]


class SlowController:
    """Lets another one decide, after a while; so requests last as long as a test needs."""

    def __init__(self, inner: Controller, seconds: float) -> None:
        self.name, self._inner, self._seconds = inner.name, inner, seconds

    def begin_stream(self) -> None:
        self._inner.begin_stream()

    def decide(self, observation: Observation) -> Decision:
        time.sleep(self._seconds)
        return self._inner.decide(observation)

    def learn(self, outcome: Outcome) -> None:
        self._inner.learn(outcome)


def slow(seconds: float) -> Callable[[Served], Served]:
    """A change that makes every decision take so long."""
    return lambda served: replace(served, controller=SlowController(served.controller, seconds))


def options(controller: str, kv_folder: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        controller=controller,
        unguarded=False,
        target=None,
        device="cpu",
        threads=1,
        dtype="float32",
        engine="auto",
        kv_folder=kv_folder,
        kv_megabytes=64,
    )


@contextmanager
def running(
    bundle: Path,
    controller: str = "policy",
    change: Callable[[Served], Served] = lambda served: served,
    kv_folder: Path | None = None,
    **config: Any,
) -> Iterator[Running]:
    """A server over a bundle, until the end of the block.

    Args:
        bundle: What is served.
        controller: Who decides.
        change: What a test does to what is served.
        kv_folder: Where stored KV goes.
        config: Fields of ``ServerConfig``.
    """
    open_ = opener(options(controller, kv_folder), read_bundle(bundle))

    @contextmanager
    def opened() -> Iterator[Served]:
        with open_() as served:
            yield change(served)

    with running_over(opened, ServerConfig(MODEL, port=0, **config)) as one:
        yield one


@contextmanager
def running_over(opened: Opener, config: ServerConfig) -> Iterator[Running]:
    """A server over whatever a test opens, until the end of the block."""
    ready, urls, servers, code = threading.Event(), list[str](), list[Server](), list[int]()

    def watch(url: str) -> None:
        urls.append(url)
        ready.set()

    def run() -> None:
        try:
            code.append(serve(opened, config, {}, watch, servers.append))
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    assert ready.wait(PATIENCE_S) and urls, "the server did not start"
    one = Running(urls[0], servers[0], thread, code)
    try:
        yield one
    finally:
        one.stop()


def ask(server: Running, tokens: int = 24, text: str = PROMPT) -> str:
    """A chat of one message, greedily answered."""
    with server.client() as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], temperature=0, max_tokens=tokens
        )
    return answer.choices[0].message.content or ""


def until(fits: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    end_s = time.monotonic() + PATIENCE_S
    while not fits():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)
