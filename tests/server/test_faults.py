"""What breaks while the server runs costs a draft or a request, never the server."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import openai
import pytest
from safetensors.torch import save_file
from starlette.types import Message

import runtime.kv_folder
from runtime.control.observation import Observation
from runtime.core import Decision, Outcome
from runtime.decoding.live import LiveDecoder
from runtime.live import Served
from runtime.server.sse import EventStream
from runtime.session import DecodeSession
from tests.server.machine import ENOUGH, Machine
from tests.server.serving import MODEL, PROMPT, Running, ask, running, until
from tests.tiny_zoo import TinyZoo

TURNS: list[Any] = [{"role": "user", "content": PROMPT}]
LONG = "w5 w17 w3 w44 " * 10


def broken_rounds(fails: Callable[[int | None], bool]) -> Callable[[Served], Served]:
    """A change that lets rounds with some drafts fail before anything is committed."""

    def change(served: Served) -> Served:
        decoder = served.session.decoder
        assert isinstance(decoder, LiveDecoder)
        good = decoder.round

        def round_(draft: int | None, *rest: Any) -> Any:
            if fails(draft):
                raise RuntimeError("the device says no")
            return good(draft, *rest)

        decoder.round = round_  # type: ignore[method-assign, assignment]
        return served

    return change


def test_a_draft_that_fails_in_a_round_is_not_used_again_and_the_text_is_whole(
    tiny_zoo: TinyZoo, steady: Running
) -> None:
    tried: list[int | None] = []

    def fails(draft: int | None) -> bool:
        tried.append(draft)
        return draft == 2

    with running(tiny_zoo.bundle, "static:lookup:4", broken_rounds(fails)) as server:
        assert ask(server) == ask(steady)
        until(lambda: server.draft_state("lookup") == "failed")
        assert ask(server) == ask(steady)
        assert tried.count(2) == 1
        assert server.metric('specpilot_draft_failed{draft="lookup"}') == 1
        assert server.metric("specpilot_drafted_tokens_total") == 0


def test_a_request_that_fails_fails_alone(tiny_zoo: TinyZoo, steady: Running) -> None:
    left = [1, 1]
    change = broken_rounds(lambda draft: bool(left and left.pop()))
    with running(tiny_zoo.bundle, "plain", change) as server, server.client() as client:
        with pytest.raises(openai.InternalServerError, match=r"failed on this device \(RuntimeError\)") as caught:
            ask(server)
        assert caught.value.code == "request_failed" and "the device says no" not in str(caught.value)
        with (
            client.chat.completions.create(model=MODEL, messages=TURNS, max_tokens=24, stream=True) as stream,
            pytest.raises(openai.APIError, match="failed on this device"),
        ):
            list(stream)  # its first token was out already
        assert ask(server) == ask(steady)
        assert server.metric('specpilot_requests_total{outcome="failed"}') == 2


class Confused:
    """A controller that cannot decide."""

    name = "confused"

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        raise ValueError("no idea")

    def learn(self, outcome: Outcome) -> None:
        raise ValueError("learnt nothing")


def test_a_controller_that_fails_costs_speed_only(tiny_zoo: TinyZoo, steady: Running) -> None:
    def change(served: Served) -> Served:
        return Served(served.models, served.session, Confused())

    with running(tiny_zoo.bundle, "plain", change) as server:
        assert ask(server) == ask(steady)
        assert server.metric("specpilot_decide_failures_total") > 0


@pytest.mark.parametrize(("method", "failures"), [("begin", 1), ("round", 2)])
def test_a_request_that_fails_leaves_nothing_held(
    tiny_zoo: TinyZoo, machine: Machine, method: str, failures: int
) -> None:
    """No stored prefix stays held and no draft counts as in use: all of it can be given up at once.

    A round with a draft is tried again without it, so it has to fail twice.
    """
    sessions, left = list[DecodeSession](), list[int]()

    def change(served: Served) -> Served:
        decoder = served.session.decoder
        assert isinstance(decoder, LiveDecoder)
        good = getattr(decoder, method)

        def fail(*arguments: Any) -> Any:
            if left and left.pop():
                raise RuntimeError("the device says no")
            return good(*arguments)

        setattr(decoder, method, fail)
        sessions.append(served.session)
        return served

    with running(tiny_zoo.bundle, "static:one:4", change, keep_free_bytes=1 << 40) as server:
        first = ask(server, text=LONG)
        until(lambda: server.draft_state("one") == "resident")
        (session,) = sessions
        left += [1] * failures
        with pytest.raises(openai.InternalServerError, match="failed on this device"):
            ask(server, text=LONG)
        until(lambda: bool(server.state()["idle"]))
        assert session.memory.kv.held_bytes == 0 and session.memory.kv.bytes > 0
        machine.available = 0
        until(lambda: server.draft_state("one") == "stored")
        until(lambda: session.memory.kv.bytes == 0)
        machine.available = ENOUGH
        until(lambda: server.metric("specpilot_set_aside_bytes") == 0)
        assert ask(server, text=LONG) == first
        assert server.metric('specpilot_requests_total{outcome="failed"}') == 1


def test_a_full_disk_is_survived(
    tiny_zoo: TinyZoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(tiny_zoo.bundle, "plain_reuse", kv_folder=tmp_path / "kv") as server:
        first = ask(server, text=LONG)
        until(lambda: server.metric("specpilot_kv_disk_bytes") > 0)
        assert server.metric("specpilot_kv_disk_failed") == 0
        monkeypatch.setattr(runtime.kv_folder, "save_file", full)
        other = ask(server, text="w9 w8 w7 w6 " * 10)
        until(lambda: server.metric("specpilot_kv_disk_failed") == 1)
        monkeypatch.setattr(runtime.kv_folder, "save_file", save_file)
        assert ask(server, text=LONG) == first  # still served from what is stored
        assert server.metric('specpilot_prompt_tokens_total{source="reused"}') >= 32
        assert ask(server, text="w9 w8 w7 w6 " * 10) == other
        assert ask(server, text="w20 w21 w22 w23 " * 10)
        assert server.get("/health").status_code == 200
    told = [line for line in caplog.messages if "no longer copied to disk" in line]
    assert len(told) == 1 and "No space left on device" in told[0] and "free some room" in told[0]
    assert not list((tmp_path / "kv").rglob("*.tmp"))


def test_stored_kv_outlives_the_server(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    with running(tiny_zoo.bundle, "plain_reuse", kv_folder=tmp_path / "kv") as server:
        first = ask(server, text=LONG)
    with running(tiny_zoo.bundle, "plain_reuse", kv_folder=tmp_path / "kv") as server:
        assert server.state()["memory"]["kv_disk_bytes"] > 0
        assert ask(server, text=LONG) == first
        assert server.metric('specpilot_prompt_tokens_total{source="reused"}') >= 32


def test_a_reader_that_reads_nothing_is_given_up() -> None:
    left: list[bool] = []

    async def events() -> AsyncIterator[bytes]:
        while True:
            yield b"data: {}\n\n"

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(3600)

    async def receive() -> Message:
        raise AssertionError("nobody asks")

    with ExitStack() as stack:
        stack.callback(left.append, True)
        stream = EventStream(events(), 0.05, stack.pop_all())
    asyncio.run(asyncio.wait_for(stream({}, receive, stuck), 30))
    assert left == [True]
