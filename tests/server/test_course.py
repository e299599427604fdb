"""One device, many clients: turns, a full queue, clients that go away, deadlines, an orderly end."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from runtime.server.chat import PromptReader
from tests.server.serving import MODEL, PROMPT, Running, running, slow, until
from tests.tiny_zoo import TinyZoo

TURNS: list[Any] = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def slowly(tiny_zoo: TinyZoo) -> Iterator[Running]:
    """Every token takes 50 ms, one request may wait."""
    with running(tiny_zoo.bundle, "plain", slow(0.05), queue=1) as server:
        yield server


def asking(tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "messages": TURNS, "temperature": 0, "max_tokens": tokens}


def ask(server: Running, tokens: int, **more: Any) -> str:
    with server.client() as client:
        answer = client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0, max_tokens=tokens, **more)
    return answer.choices[0].message.content or ""


def test_a_stream_comes_while_it_is_written(slowly: Running) -> None:
    with slowly.client() as client:
        with client.chat.completions.create(
            model=MODEL, messages=TURNS, temperature=0, max_tokens=40, stream=True
        ) as stream:
            next(iter(stream))
            assert not slowly.state()["idle"]


def test_prompts_are_read_in_one_thread(tiny_zoo: TinyZoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers keep memory for every thread that they were used in."""
    threads: list[str] = []
    read = PromptReader.chat

    def watched(self: PromptReader, messages: Any) -> list[int]:
        threads.append(threading.current_thread().name)
        time.sleep(0.05)  # so that others come meanwhile
        return read(self, messages)

    monkeypatch.setattr(PromptReader, "chat", watched)
    with running(tiny_zoo.bundle, "plain", queue=16) as server, ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(lambda _: ask(server, 4), range(12)))) == 1
    assert len(threads) == 12 and len(set(threads)) == 1 and threads[0].startswith("specpilot-reader")


def test_a_client_that_goes_away_ends_its_request(slowly: Running) -> None:
    until(lambda: bool(slowly.state()["idle"]))  # what others asked has ended
    before = slowly.metric('specpilot_requests_total{outcome="client_closed"}')
    with slowly.client() as client:
        stream = client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0, max_tokens=200, stream=True)
        for _, _ in zip(range(3), stream, strict=False):
            pass
        stream.close()
    until(lambda: bool(slowly.state()["idle"]))
    address = urlsplit(slowly.url)
    content = json.dumps({"model": MODEL, "messages": TURNS, "temperature": 0, "max_tokens": 200})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port)) as sock:  # not a stream
        sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
        until(lambda: not slowly.state()["idle"])
    until(lambda: bool(slowly.state()["idle"]))
    assert slowly.metric('specpilot_requests_total{outcome="client_closed"}') == before + 2
    assert ask(slowly, 4)


def test_a_full_queue_is_told_with_when_to_come_back(slowly: Running) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, slowly, 40)
        until(lambda: not slowly.state()["idle"])
        second = pool.submit(ask, slowly, 4)
        until(lambda: slowly.state()["waiting"] == 1)
        with slowly.client() as client, pytest.raises(openai.RateLimitError, match="requests are waiting") as caught:
            client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert first.result().startswith(second.result())


def test_a_client_that_stops_waiting_frees_its_place(slowly: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, slowly, 40)
        until(lambda: not slowly.state()["idle"])
        address = urlsplit(slowly.url)
        content = json.dumps({"model": MODEL, "messages": TURNS, "temperature": 0, "max_tokens": 200})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection((address.hostname, address.port)) as sock:
            sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
            until(lambda: slowly.state()["waiting"] == 1)
        until(lambda: slowly.state()["waiting"] == 0)
        assert not first.done()
        first.result()


def test_eight_clients_get_the_same_text(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle) as server, ThreadPoolExecutor(8) as pool:
        texts = {task.result() for task in [pool.submit(ask, server, 16) for _ in range(16)]}
        assert len(texts) == 1
        assert server.metric('specpilot_requests_total{outcome="finished"}') == 16
        assert server.metric("specpilot_requests_waiting") == 0


def test_a_request_that_takes_too_long_is_ended(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", slow(0.05), timeout_s=0.5) as server:
        with server.client() as client:
            with pytest.raises(openai.APIStatusError, match=r"longer than 0\.5 s") as caught:
                client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0, max_tokens=200)
            assert caught.value.status_code == 504 and caught.value.response.headers["x-should-retry"] == "false"
            with (
                client.chat.completions.create(
                    model=MODEL, messages=TURNS, temperature=0, max_tokens=200, stream=True
                ) as stream,
                pytest.raises(openai.APIError, match=r"longer than 0\.5 s"),
            ):
                list(stream)
            assert client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0, max_tokens=1).choices
        assert server.metric('specpilot_requests_total{outcome="timeout"}') == 2


def test_the_end_lets_finish_what_was_begun(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", slow(0.05)) as server, ThreadPoolExecutor(2) as pool:
        whole = ask(server, 30)
        begun = pool.submit(ask, server, 30)
        until(lambda: not server.state()["idle"])
        waiting = pool.submit(ask, server, 30)
        until(lambda: server.state()["waiting"] == 1)
        assert server.stop() == 0
        assert begun.result() == whole
        with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
            waiting.result()
        assert caught.value.status_code == 503 and "retry-after" in caught.value.response.headers


def test_the_end_does_not_wait_longer_than_it_may(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", slow(0.2), grace_s=1) as server, ThreadPoolExecutor(1) as pool:
        begun = pool.submit(ask, server, 200)  # 40 s
        until(lambda: not server.state()["idle"])
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        stopper.join(20)
        assert not stopper.is_alive()
        with pytest.raises(openai.APIError):
            begun.result()
