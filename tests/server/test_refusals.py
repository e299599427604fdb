"""Whatever a client sends: one clear message in OpenAI's shape, never a 500, and the server goes on."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from runtime.errors import UserError
from runtime.server.config import ServerConfig
from tests.server.serving import MODEL, Running, running
from tests.tiny_zoo import TinyZoo

HEADERS = {"Content-Type": "application/json"}
TURNS = [{"role": "user", "content": "w5"}]


def body(**more: Any) -> str:
    return json.dumps({"model": MODEL, "messages": TURNS, "max_tokens": 1, **more})


BAD: dict[str, tuple[str | bytes, str]] = {
    "not json": ("{", "not valid JSON"),
    "no body": ("", "Field required|expected as the request body|must provide"),
    "not utf-8": (b'{"model": "\xff"}', "not valid JSON"),
    "a list": ("[]", "valid dictionary"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "no messages": (json.dumps({"model": MODEL}), "you must provide messages"),
    "empty messages": (body(messages=[]), "at least 1 item"),
    "a role of its own": (body(messages=[{"role": "tool", "content": "x"}]), "messages.0.role: "),
    "half a surrogate": (body(messages=[{"role": "user", "content": "\ud800"}]), "surrogates not allowed"),
    "a picture": (body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "a part of type 'image_url'"),
    "NaN": (body(temperature=float("nan")), "NaN is no JSON number"),
    "infinity": (body(top_p=float("inf")), "Infinity is no JSON number"),
    "1e999": (body(temperature=0).replace('"temperature": 0', '"temperature": 1e999'), "temperature: "),
    "negative temperature": (body(temperature=-1), "temperature: .*greater than or equal to 0"),
    "temperature as text": (body(temperature="0"), "temperature: .*valid number"),
    "temperature as truth": (body(temperature=True), "temperature: .*valid number"),
    "no tokens": (body(max_tokens=0), "max_tokens: .*greater than or equal to 1"),
    "negative tokens": (body(max_tokens=-5), "max_tokens: .*greater than or equal to 1"),
    "half a token": (body(max_tokens=1.5), "max_tokens: .*valid integer"),
    "too many tokens": (body(max_tokens=100_000), "at most 2048 tokens"),
    "a huge number": (body(max_tokens=0).replace('"max_tokens": 0', f'"max_tokens": {"9" * 5000}'), "digits|less than"),
    "two limits": (body(max_completion_tokens=2), "differs from max_completion_tokens"),
    "two answers": (body(n=2), "n: Input should be 1"),
    "top_p of 0": (body(top_p=0), "top_p: "),
    "a seed of 100 bits": (body(seed=2**100), "seed: "),
    "an empty stop": (body(stop=""), "stop"),
    "five stops": (body(stop=list("abcde")), "stop: .*at most 4"),
    "an unknown field": (body(foo=1), "Unrecognized request argument supplied: foo"),
    "an unknown field inside": (body(specpilot={"x": 1}), "Unrecognized request argument supplied: specpilot.x"),
    "tools": (body(tools=[{"type": "function"}]), "'tools' is not supported"),
    "json mode": (body(response_format={"type": "json_object"}), "'response_format' is not supported"),
    "logprobs": (body(logprobs=True), "'logprobs' is not supported"),
    "a penalty": (body(frequency_penalty=0.5), "'frequency_penalty' is not supported"),
    "options of no stream": (body(stream_options={"include_usage": True}), "only allowed when 'stream' is true"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_body_is_refused_with_one_message(server: Running, case: str) -> None:
    content, message = BAD[case]
    answer = server.post("/v1/chat/completions", content=content, headers=HEADERS)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    with pytest.raises(ValueError, match=message):
        raise ValueError(error["message"])


def test_fields_that_ask_for_nothing_are_taken(server: Running) -> None:
    harmless = body(
        temperature=None, stop=None, n=1, frequency_penalty=0, presence_penalty=0.0, logit_bias={}, logprobs=False,
        tools=[], response_format={"type": "text"}, user="me", metadata={"a": "b"}, store=False, seed=-1, top_k=5,
        min_p=0.01, repetition_penalty=1.1,
    )  # fmt: skip
    answer = server.post("/v1/chat/completions", content=harmless, headers=HEADERS)
    assert answer.status_code == 200, answer.text


def test_prompts_of_a_text_completion_are_checked(server: Running) -> None:
    for prompt, message in (
        ([99999], "token id 99999 is none of this model's: expected 0 to 60"),
        (["w5", "w6"], "one prompt a request"),
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([[5], [6]], "one prompt a request"),
        ([5, "w5"], "prompt"),
    ):
        answer = server.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
        assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded"])
def test_a_body_must_say_that_it_is_json(server: Running, kind: str) -> None:
    answer = server.post("/v1/chat/completions", content=body(), headers={"Content-Type": kind})
    assert answer.status_code == 415 and answer.json()["error"]["code"] == "unsupported_media_type"


def test_a_huge_prompt_is_refused_and_the_client_hears_why(server: Running) -> None:
    with server.client() as client, pytest.raises(openai.APIStatusError, match="larger than 1048576 bytes") as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "w5 " * 3_500_000}])
    assert caught.value.status_code == 413

    def pieces() -> Any:
        for _ in range(40):
            yield b" " * 50_000

    answer = server.post("/v1/chat/completions", content=pieces(), headers=HEADERS)  # without a length
    assert answer.status_code == 413


def test_unknown_paths_and_methods_are_told_in_the_same_shape(server: Running) -> None:
    for answer, status in (
        (server.get("/v1/embeddings"), 404),
        (server.get("/v1/chat/completions"), 405),
        (server.get("/page/../app.py"), 404),
        (server.get("/page/%2e%2e/%2e%2e/etc/passwd"), 404),
    ):
        assert answer.status_code == status and set(answer.json()) == {"error"}


def test_a_name_that_leads_here_from_elsewhere_is_refused(server: Running) -> None:
    answer = server.get("/state", headers={"Host": "evil.example"})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "wrong_host"
    assert server.get("/state", headers={"Host": "localhost:8000"}).status_code == 200


def test_no_other_web_page_may_call_unless_allowed(tiny_zoo: TinyZoo, server: Running) -> None:
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with httpx.Client(trust_env=False) as client:
        refused = client.options(f"{server.url}/v1/chat/completions", headers=asks)
        assert "access-control-allow-origin" not in refused.headers
        with running(tiny_zoo.bundle, "plain", cors_origins=("https://a.example",)) as open_:
            allowed = client.options(f"{open_.url}/v1/chat/completions", headers=asks)
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"


def test_a_key_is_asked_for(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", api_keys=("right", "second")) as server:
        for key in ("wrong", "righ", "right2"):
            with server.client(key) as client, pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
                client.models.list()
        for path in ("/v1/models", "/state", "/metrics"):
            assert server.get(path).status_code == 401
        assert server.get("/state", headers={"Authorization": "Basic right"}).status_code == 401
        assert server.get("/state", headers={"Authorization": b"Bearer \xff"}).status_code == 401
        for key in ("right", "second"):
            with server.client(key) as client:
                assert [model.id for model in client.models.list()] == [MODEL]
        assert server.get("/health").status_code == server.get("/").status_code == 200
        assert server.post("/v1/completions", content="{", headers=HEADERS).status_code == 401  # not even read


def test_two_hundred_idle_connections_harm_nobody(server: Running) -> None:
    address = urlsplit(server.url)
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((address.hostname, address.port)))
        assert server.post("/v1/chat/completions", content=body(), headers=HEADERS).status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", body_timeout_s=0.2) as server:
        address = urlsplit(server.url)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        with socket.create_connection((address.hostname, address.port)) as sock:
            sock.sendall(head)
            assert sock.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 70000),
        ("queue", 0),
        ("timeout_s", 0.0),
        ("timeout_s", float("nan")),
        ("max_tokens", 0),
        ("api_keys", ("",)),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(field: str, value: object) -> None:
    name = {"timeout_s": "timeout", "api_keys": "api-key", "max_tokens": "max-tokens"}.get(field, field)
    with pytest.raises(UserError, match=f"--{name} must be"):
        ServerConfig(MODEL, **{field: value})  # type: ignore[arg-type]
