"""The official client, unchanged, over a real socket: the target's own text, whole and as a stream."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from runtime.cli import main
from tests.server.serving import MODEL, PROMPT, Running, running, until
from tests.tiny_zoo import TinyZoo

PROMPTS = (PROMPT, "w30 w31 w30 w31 w30", "w50")


def chat(text: str = PROMPT) -> list[Any]:
    return [{"role": "user", "content": text}]


def plain_text(tiny_zoo: TinyZoo, capsys: pytest.CaptureFixture[str], prompt: str) -> str:
    """What plain decoding answers on the command line."""
    arguments = ["--bundle", str(tiny_zoo.bundle), "--prompt", prompt, "--threads", "1", "--max-tokens", "24"]
    assert main(["generate", *arguments, "--controller", "plain", "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)["text"])


@pytest.mark.exact
def test_a_greedy_answer_is_that_of_plain_decoding(
    server: Running, tiny_zoo: TinyZoo, capsys: pytest.CaptureFixture[str]
) -> None:
    with server.client() as client:
        for prompt in PROMPTS:
            expected = plain_text(tiny_zoo, capsys, prompt)
            whole = client.chat.completions.create(
                model=MODEL, messages=chat(prompt), temperature=0, max_completion_tokens=24
            )
            assert whole.choices[0].message.content == expected
            stream = client.chat.completions.create(
                model=MODEL, messages=chat(prompt), temperature=0, max_tokens=24, stream=True
            )
            with stream:
                assert "".join(part.choices[0].delta.content or "" for part in stream) == expected


def test_usage_adds_up(server: Running) -> None:
    with server.client() as client:
        answer = client.chat.completions.create(model=MODEL, messages=chat(), temperature=0, max_tokens=24)
    usage = answer.usage
    assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens == len(PROMPT.split()) + 1
    own: dict[str, Any] = usage.model_dump()["specpilot"]
    assert usage.completion_tokens == 1 + own["accepted"] + own["corrections"]
    assert own["rounds"] >= own["corrections"] and own["drafted"] >= own["accepted"]
    assert 0 < own["ttft_s"] and 0 < own["seconds"]


def test_a_stream_ends_with_its_reason_and_usage(server: Running) -> None:
    with server.client() as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=chat(),
            temperature=0,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        with stream:
            parts = list(stream)
    assert parts[0].choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == "length"
    assert parts[-1].choices == [] and parts[-1].usage is not None and parts[-1].usage.completion_tokens == 8
    assert all(part.usage is None for part in parts[:-1])
    assert len({part.id for part in parts}) == 1


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_text_and_is_not_shown(server: Running, as_list: bool) -> None:
    with server.client() as client:
        given: dict[str, Any] = {"model": MODEL, "messages": chat(), "temperature": 0, "max_tokens": 24}
        whole = client.chat.completions.create(**given).choices[0].message.content or ""
        word = whole.split()[3]
        given["stop"] = [word, "never"] if as_list else word
        stopped = client.chat.completions.create(**given)
        assert stopped.choices[0].message.content == whole[: whole.index(word)]
        assert stopped.choices[0].finish_reason == "stop"
        with client.chat.completions.create(**given, stream=True) as stream:
            assert "".join(part.choices[0].delta.content or "" for part in stream) == whole[: whole.index(word)]


def test_text_completions_take_text_and_tokens(server: Running) -> None:
    with server.client() as client:
        given: dict[str, Any] = {"model": MODEL, "temperature": 0}
        text = client.completions.create(prompt="w5 w17 w3", **given)
        tokens = client.completions.create(prompt=[5, 17, 3], **given)
        listed = client.completions.create(prompt=["w5 w17 w3"], **given)
        assert text.choices[0].text == tokens.choices[0].text == listed.choices[0].text
        assert text.usage is not None and text.usage.completion_tokens == 16
        with client.completions.create(prompt="w5 w17 w3", stream=True, **given) as stream:
            assert "".join(part.choices[0].text for part in stream) == text.choices[0].text


def sampled(client: openai.OpenAI, **more: Any) -> str:
    answer = client.chat.completions.create(model=MODEL, messages=chat(), max_tokens=24, **more)
    return answer.choices[0].message.content or ""


def test_a_seed_repeats_a_sampled_text_where_decisions_repeat(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain") as server, server.client() as client:
        first, again, other = (sampled(client, temperature=1.5, top_p=0.95, seed=seed) for seed in (7, 7, 8))
    assert first == again != other


def test_the_default_temperature_is_that_of_openai(steady: Running) -> None:
    with steady.client() as client:
        assert len({sampled(client, seed=seed) for seed in range(4)}) > 1


def test_models_are_listed_and_others_refused(server: Running) -> None:
    with server.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        for name in ("other", "../../etc/passwd", "x" * 5000):
            with pytest.raises(openai.NotFoundError, match="does not exist here") as caught:
                client.chat.completions.create(model=name, messages=chat())
            assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError, match="does not exist here"):
            client.models.retrieve("other")


def test_a_prompt_beyond_the_context_is_refused(server: Running) -> None:
    with server.client() as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 257 tokens") as caught:
            client.chat.completions.create(model=MODEL, messages=chat("w5 " * 300))
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="Please reduce"):
            client.chat.completions.create(model=MODEL, messages=chat("w5 " * 200), max_tokens=100)


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def test_a_second_turn_reuses_the_first_ones_kv(tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain_reuse") as server, server.client() as client:
        turns = chat("w5 w17 w3 w44 " * 10)
        given: dict[str, Any] = {"model": MODEL, "temperature": 1, "max_tokens": 12}  # no near-tie is decided again
        first = client.chat.completions.create(messages=turns, **given)
        assert cached(first) == 0
        turns += [{"role": "assistant", "content": first.choices[0].message.content}, *chat("w9")]
        assert cached(client.chat.completions.create(messages=turns, **given)) >= 32
        until(lambda: any(entry["memory"] >= 32 for entry in server.state()["memory"]["kv"]))


def test_several_parts_and_roles_are_one_prompt(server: Running) -> None:
    with server.client() as client:
        parts: list[Any] = [
            {"role": "developer", "content": "w5"},
            {"role": "user", "content": [{"type": "text", "text": "w17 "}, {"type": "text", "text": "w3"}]},
            {"role": "assistant", "content": "w44"},
            {"role": "user", "content": "w9"},
        ]
        answer = client.chat.completions.create(model=MODEL, messages=parts, max_tokens=1)
    assert answer.usage is not None and answer.usage.prompt_tokens == 6


def test_a_trace_says_where_every_token_came_from(steady: Running) -> None:
    with steady.client() as client:
        given: dict[str, Any] = {"model": MODEL, "messages": chat(), "temperature": 0, "max_tokens": 48}
        stream = client.chat.completions.create(**given, stream=True, extra_body={"specpilot": {"trace": True}})
        with stream:
            parts = [part.model_dump() for part in stream]
        whole = client.chat.completions.create(**given, extra_body={"specpilot": {"trace": True}})
    steps = [part["specpilot"] for part in parts if "specpilot" in part]
    tokens = [token for step in steps for token in step["tokens"]]
    assert len(tokens) == 48 and tokens[0]["origin"] == "prefill"
    assert "".join(token["text"] for token in tokens) == whole.choices[0].message.content
    assert {token["draft"] for token in tokens if token["origin"] == "accepted"} == {"lookup"}
    assert sum(token["origin"] == "accepted" for token in tokens) == sum(step["accepted"] for step in steps) > 0
    assert {step["decision"]["phase"] for step in steps} == {"admit", "decode", "complete"}
    assert [draft["name"] for draft in steps[0]["memory"]["drafts"]] == ["one", "two", "lookup"]
    again = [token for step in whole.model_dump()["specpilot"]["steps"] for token in step["tokens"]]
    assert [token["text"] for token in again] == [token["text"] for token in tokens]
