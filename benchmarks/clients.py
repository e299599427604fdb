"""Clients that ask a server at given times, with the official ``openai`` client, and note what they got."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import openai
from openai import DefaultHttpxClient, OpenAI

from benchmarks.mixture import Ask

PATIENCE_S = 600.0
CHAT_TURNS = 4
"""User messages of a chat; then a new one begins."""
SHOWN_FAILURES = 20
HALF = "\N{REPLACEMENT CHARACTER}"
"""What a text ends with whose last character was cut by the most tokens."""


class Answer(NamedTuple):
    """An answer; ``key`` tells what was asked if it is greedy, so that the same question has the same answer."""

    text: str
    key: str | None = None


@dataclass
class Tally:
    """What all clients got. Every method may be called from any thread.

    Attributes:
        done: Answers by kind.
        tokens: Completion tokens of answers that were read to their end.
        busy: Times a client was told to come back later (429), which is no failure.
        failures: What else went wrong, the first few.
        failed: How many that were.
        unlike: Greedy answers that differ from an earlier one to the same question.
        seconds: Of every answer, from asking to the end, waiting included.
    """

    done: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    busy: int = 0
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    unlike: int = 0
    seconds: list[float] = field(default_factory=list)
    _texts: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, ask: Ask, answer: Answer, tokens: int, seconds: float) -> None:
        """An answer has come."""
        with self._lock:
            self.done[ask.kind] += 1
            self.tokens += tokens
            self.seconds.append(seconds)
            if answer.key is not None:
                text = answer.text.rstrip(HALF)
                known = self._texts.setdefault(answer.key, text)
                self.unlike += not (known.startswith(text) or text.startswith(known))
                self._texts[answer.key] = max(known, text, key=len)

    def was_busy(self) -> None:
        """A client was told to come back later."""
        with self._lock:
            self.busy += 1

    def fail(self, ask: Ask, error: Exception) -> None:
        """A request failed."""
        with self._lock:
            self.failed += 1
            if len(self.failures) < SHOWN_FAILURES:
                self.failures.append(f"{ask.kind}: {type(error).__name__}: {error}")


class Client:
    """One client: asks one thing at a time, and keeps a chat going.

    Args:
        url: The server.
        model: Its model.
        tally: Where answers are noted.
        most_words: Longest chat, in words.
    """

    def __init__(self, url: str, model: str, tally: Tally, most_words: int) -> None:
        http = DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S)
        self._api = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)
        self._model, self._tally, self._most_words = model, tally, most_words
        self._chat: list[Any] = []
        self._used = 0

    def close(self) -> None:
        """Give back what it holds."""
        self._api.close()

    def ask(self, ask: Ask) -> None:
        """Ask, coming back as often as the server is busy, and note what came of it."""
        started_s = time.perf_counter()
        while True:
            self._used = 0
            try:
                answer = self._answer(ask)
            except openai.RateLimitError as busy:
                self._tally.was_busy()
                time.sleep(float(busy.response.headers["retry-after"]))
                continue
            except Exception as error:  # whatever it is, it is counted
                self._chat = []
                self._tally.fail(ask, error)
            else:
                self._tally.take(ask, answer, self._used, time.perf_counter() - started_s)
            return

    def _answer(self, ask: Ask) -> Answer:
        alone = [{"role": "user", "content": ask.prompt}]
        if ask.kind == "turn":
            return Answer(self._turn(ask))
        if ask.kind == "text":
            given = self._api.completions.create(
                model=self._model, prompt=ask.prompt, max_tokens=ask.max_tokens, temperature=0
            )
            self._note(given)
            return Answer(given.choices[0].text, f"text {ask.prompt}")
        if ask.kind == "sampled":
            return Answer(self._whole(ask, alone, temperature=0.8, top_p=0.95, seed=ask.seed))
        if ask.kind == "whole":
            return Answer(self._whole(ask, alone, temperature=0), ask.prompt)
        return Answer(self._streamed(ask, alone, leave=ask.kind == "cancelled"), ask.prompt)

    def _turn(self, ask: Ask) -> str:
        words = sum(len(message["content"].split()) for message in self._chat)
        ended = len(self._chat) >= 2 * CHAT_TURNS or words > self._most_words
        chat = [] if ended else self._chat
        turns = [*chat, {"role": "user", "content": ask.follow_up if chat else ask.prompt}]
        text = self._whole(ask, turns, temperature=0)
        self._chat = [*turns, {"role": "assistant", "content": text}]
        return text

    def _whole(self, ask: Ask, messages: Sequence[Any], **sampling: Any) -> str:
        given = self._api.chat.completions.create(
            model=self._model, messages=list(messages), max_tokens=ask.max_tokens, **sampling
        )
        self._note(given)
        return given.choices[0].message.content or ""

    def _streamed(self, ask: Ask, messages: Sequence[Any], leave: bool) -> str:
        parts: list[str] = []
        with self._api.chat.completions.create(
            model=self._model,
            messages=list(messages),
            max_tokens=ask.max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            for part in stream:
                self._note(part)
                parts += [choice.delta.content or "" for choice in part.choices]
                if leave and len(parts) > ask.max_tokens // 4:
                    break
        return "".join(parts)

    def _note(self, answer: Any) -> None:
        if answer.usage is not None:
            self._used = answer.usage.completion_tokens


def ask_all(clients: Sequence[Client], asks: Sequence[Ask], seconds: float, done: Any) -> None:
    """Every client asks its share, one request after another, each not before its time.

    Args:
        clients: Who asks.
        asks: What is asked, in order.
        seconds: Least time from the first request to the last.
        done: Called after each.
    """
    began_s, pause_s = time.monotonic(), seconds / max(1, len(asks) - 1)

    def run(first: int) -> None:
        for index in range(first, len(asks), len(clients)):
            time.sleep(max(0.0, began_s + index * pause_s - time.monotonic()))
            clients[first].ask(asks[index])
            done()

    threads = [threading.Thread(target=run, args=(index,), name=f"client-{index}") for index in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
