"""Clients by others than OpenAI, unchanged: Hugging Face's own, and LiteLLM where it is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError

from tests.server.serving import MODEL, PROMPT, Running, ask, until

TURNS: list[Any] = [{"role": "user", "content": PROMPT}]

LITELLM = """
import json, sys
import litellm
url, model, prompt = sys.argv[1:]
given = dict(model=f"openai/{model}", api_base=f"{url}/v1", api_key="none", temperature=0, max_tokens=24,
             messages=[{"role": "user", "content": prompt}])
whole = litellm.completion(**given)
stream = litellm.completion(**given, stream=True)
parts = [part.choices[0].delta.content or "" for part in stream]
try:
    litellm.completion(**{**given, "model": "openai/other"})
except litellm.NotFoundError as error:
    refused = str(error)
print(json.dumps([whole.choices[0].message.content, "".join(parts), whole.usage.completion_tokens, refused]))
"""


@pytest.fixture
def client(server: Running) -> Iterator[InferenceClient]:
    with InferenceClient(base_url=f"{server.url}/v1", api_key="none") as one:
        yield one


def test_hugging_faces_client_chats_and_streams(server: Running, client: InferenceClient) -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": TURNS, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**given)
    assert whole.choices[0].message.content == ask(server)
    assert whole.usage.completion_tokens == 24 and whole.choices[0].finish_reason == "length"
    parts = [part.choices[0].delta.content or "" for part in client.chat.completions.create(**given, stream=True)]
    assert "".join(parts) == ask(server) and len(parts) > 1


def test_hugging_faces_client_stops_and_cancels(server: Running, client: InferenceClient) -> None:
    word = ask(server).split()[3]
    given: dict[str, Any] = {"model": MODEL, "messages": TURNS, "temperature": 0}
    stopped = client.chat_completion(**given, max_tokens=24, stop=[word])
    assert stopped.choices[0].message.content == ask(server)[: ask(server).index(word)]
    stream = client.chat_completion(**given, max_tokens=150, stream=True)
    next(iter(stream))
    client.close()  # type: ignore[no-untyped-call]
    until(lambda: bool(server.state()["idle"]))


def test_hugging_faces_client_hears_what_is_wrong(client: InferenceClient) -> None:
    with pytest.raises(BadRequestError, match="max_tokens"):
        client.chat_completion(model=MODEL, messages=TURNS, max_tokens=-1)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not installed")
def test_litellm_chats_streams_and_hears_what_is_wrong(server: Running) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LITELLM, server.url, MODEL, PROMPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    whole, streamed, tokens, refused = json.loads(done.stdout.splitlines()[-1])
    assert whole == streamed == ask(server) and tokens == 24
    assert "does not exist here" in refused
