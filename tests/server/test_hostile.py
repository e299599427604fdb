"""Clients that mean ill, or are broken: the server says what is wrong or hangs up, and others do not notice."""

from __future__ import annotations

import json
import math
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from runtime.server import listening
from tests.server.serving import MODEL, PATIENCE_S, Running, ask, running, until
from tests.tiny_zoo import TinyZoo

HEADERS = {"Content-Type": "application/json"}
TURNS = [{"role": "user", "content": "w5"}]
MEGABYTE = 1_000_000


def connected(server: Running, timeout_s: float = PATIENCE_S) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout_s)


def answer_to(server: Running, content: bytes) -> bytes:
    """All that comes back until the server hangs up; the client says that nothing more will come."""
    with connected(server) as sock:
        with suppress(OSError):  # it may hang up before it has read all
            sock.sendall(content)
            sock.shutdown(socket.SHUT_WR)
        return rest_of(sock)


def rest_of(sock: socket.socket) -> bytes:
    """What a connection still gives."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


# -- what is no HTTP -------------------------------------------------------------------------------------------------

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GARBAGE = {
    "nothing": b"",
    "bytes": bytes(range(256)) * 40,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "no version": b"GET /\r\n\r\n",
    "HTTP/9": b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "a long path": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
    "a NUL": b"GET /he\0alth HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a negative length": POST + b"Content-Length: -5\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}",
    "a length beyond all numbers": POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}",
    "a length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
    "a chunk of no size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    "half a body": POST + b"Content-Length: 1000\r\n\r\n{",
    "an upgrade": b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
}


@pytest.mark.parametrize("case", GARBAGE)
def test_what_is_no_http_is_refused_or_hung_up_on(server: Running, case: str) -> None:
    answer = answer_to(server, GARBAGE[case])
    assert answer == b"" or answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:200]
    assert server.get("/health").status_code == 200


def test_two_requests_in_one_piece_are_both_answered(server: Running) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert answer_to(server, one * 2).count(b"HTTP/1.1 200") == 2


def test_clients_that_vanish_leave_nothing_behind(server: Running) -> None:
    body = json.dumps({"model": MODEL, "messages": TURNS, "max_tokens": 200, "stream": True}).encode()
    whole = POST.replace(b"completions", b"chat/completions") + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    for index in range(40):
        with connected(server) as sock:
            sock.sendall(whole[: len(whole) * (index % 4 + 1) // 4])
    until(lambda: bool(server.state()["idle"]) and server.state()["waiting"] == 0)
    assert ask(server)


# -- what is no request ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", -1), ("n", 0), ("n", 1.5), ("top_k", -1), ("top_k", 2**31), ("min_p", -0.1), ("min_p", 1.5),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", 1e308), ("top_p", -0.5),
        ("top_p", 1.01), ("temperature", 2.01), ("frequency_penalty", -3), ("presence_penalty", 3), ("seed", 1.5),
        ("seed", "7"), ("max_tokens", "5"), ("max_tokens", []), ("stream", "yes"), ("stop", 5), ("stop", [5]),
        ("stop", "x" * 100_000), ("messages", {}), ("messages", [[]]), ("model", None), ("model", 5),
        ("stream_options", True), ("specpilot", "trace"), ("logit_bias", {"5": math.nan}), ("__proto__", {}),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named(server: Running, field: str, value: Any) -> None:
    body = {"model": MODEL, "messages": TURNS, "max_tokens": 1, field: value}
    answer = server.post("/v1/chat/completions", content=json.dumps(body), headers=HEADERS)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert field in f"{error['param']} {error['message']}" or "NaN" in error["message"]


@pytest.mark.parametrize(
    "prompt", ["[-1]", "[1.5]", "[true]", "[4294967296]", "[NaN]", "[null]", "[-0.0]", "null", "7"]
)
def test_a_token_that_cannot_be_is_refused(server: Running, prompt: str) -> None:
    answer = server.post("/v1/completions", content=f'{{"model": "{MODEL}", "prompt": {prompt}}}', headers=HEADERS)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error", answer.text


def test_ten_megabytes_of_prompt_are_refused_where_bodies_may_be_large_and_nobody_waits(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", max_body_bytes=64 * MEGABYTE) as server, ThreadPoolExecutor(2) as pool:
        for text in ("w5 " * (10 * MEGABYTE // 3), "w" * 10 * MEGABYTE):
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 100}
            asked = pool.submit(server.post, "/v1/chat/completions", json=body)
            assert server.get("/health").status_code == 200
            answer = asked.result()
            assert answer.status_code == (200 if " " not in text else 400), answer.text[:500]
            if answer.status_code == 400:
                assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert ask(server)


texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "model", "messages", "prompt", "stream", "stream_options", "stop", "temperature", "top_p", "seed", "max_tokens",
    "n", "top_k", "min_p", "repetition_penalty", "specpilot", "logit_bias", "user", "tools", "echo", "logprobs",
)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chat=st.booleans(),
    changed=st.dictionaries(st.sampled_from(FIELDS), values, min_size=1, max_size=3),
    content=texts,
)
def test_whatever_json_is_sent_no_answer_is_a_mistake_of_the_server(
    server: Running, chat: bool, changed: dict[str, Any], content: str
) -> None:
    usual = {"messages": [{"role": "user", "content": content}]} if chat else {"prompt": content}
    body = {"model": MODEL, "max_tokens": 1, **usual, **changed}
    try:
        encoded = json.dumps(body).encode()
    except UnicodeEncodeError:
        return
    answer = server.post(f"/v1/{'chat/' if chat else ''}completions", content=encoded, headers=HEADERS)
    assert answer.status_code in (200, 400, 404), (body, answer.text)


# -- readers that do not read ----------------------------------------------------------------------------------------


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as one:
        yield one


@pytest.fixture
def narrow(tiny_zoo: TinyZoo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server whose connections hold little, so that a reader who does not read is noticed soon."""
    bound = listening.bound

    def narrow_bound(host: str, port: int) -> socket.socket:
        listener = bound(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(listening, "bound", narrow_bound)
    with running(tiny_zoo.bundle, "plain", write_timeout_s=1.0) as server:
        yield server


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sizes of socket buffers are Linux's")
def test_readers_that_read_nothing_keep_nobody_waiting_and_are_hung_up_on(narrow: Running, stack: ExitStack) -> None:
    body = json.dumps({
        "model": MODEL, "messages": TURNS, "temperature": 0, "max_tokens": 240, "stream": True,
        "specpilot": {"trace": True},
    }).encode()  # fmt: skip
    whole = POST.replace(b"completions", b"chat/completions") + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    address = urlsplit(narrow.url)
    before = narrow.metric("process_open_fds")
    readers = [stack.enter_context(socket.socket()) for _ in range(3)]
    for sock in readers:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.settimeout(PATIENCE_S)
        sock.connect((address.hostname, address.port))
        sock.sendall(whole)
    assert ask(narrow)
    until(lambda: narrow.metric("process_open_fds") <= before + len(readers))  # their own ends, in this process too
    assert ask(narrow)
    for sock in readers:
        assert b"[DONE]" not in rest_of(sock)
