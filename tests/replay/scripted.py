"""Drafts that are functions of the tokens before: traces made of them token by token, and a decoder that runs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from envs.trace_code import decode, encode
from envs.traces import RUN_ON, DraftRef, DraftTrace, Trace, TraceSet
from runtime.core import Round

EOS = 0
WORDS = 4


def guess(draft: int, tokens: Sequence[int]) -> tuple[int, float]:
    """What draft ``draft`` says behind ``tokens``, and how sure it is."""
    rng = random.Random(f"{draft}-{list(tokens)}")
    token = rng.randrange(WORDS) if rng.random() < 0.6 else (sum(tokens) + len(tokens)) % WORDS
    return token, rng.uniform(0.05, 0.999)


def write(rng: random.Random, most: int) -> tuple[int, ...]:
    """A text that ends with ``EOS`` or after ``most`` tokens."""
    output: list[int] = []
    while len(output) < most:
        output.append(0 if rng.random() < 0.05 else rng.randrange(1, WORDS))
        if output[-1] == EOS:
            break
    return tuple(output)


def draft_trace(draft: int, prompt: Sequence[int], output: Sequence[int]) -> DraftTrace:
    """One draft along one text, a guess at a time."""
    match, confidence, start = [], [], [0]
    run_on: list[float] = []
    for position, truth in enumerate(output):
        tokens = [*prompt, *output[:position]]
        token, sure = guess(draft, tokens)
        match.append(token == truth)
        confidence.append(sure)
        while not match[-1] and token != EOS and len(run_on) - start[-1] < RUN_ON:
            tokens.append(token)
            token, sure = guess(draft, tokens)
            run_on.append(sure)
        start.append(len(run_on))
    return DraftTrace(np.array(match), encode(confidence), encode(run_on), np.array(start, dtype=np.int32))


@cache
def make_trace(
    seed: int,
    kind: str = "single",
    group: str = "",
    turn: int = 0,
    domain: str = "code",
    split: str = "train",
    drafts: int = 2,
    most: int = 24,
) -> Trace:
    """A made-up prompt with its text and ``drafts`` drafts along it."""
    rng = random.Random(seed)
    prompt = (*(rng.randrange(1, WORDS) for _ in range(rng.randint(1, 9))), 1000 + seed)
    output = write(rng, most)
    name = f"{domain}-{split}-{kind}-{seed}"
    return Trace(
        name, domain, split, kind, group or name, turn, prompt, output,
        tuple(draft_trace(draft, prompt, output) for draft in range(drafts)),
    )  # fmt: skip


def make_traces(traces: Sequence[Trace], names: tuple[str, ...] = ("code", "math")) -> TraceSet:
    """A set of them."""
    refs = tuple(DraftRef(name, f"hash-{name}") for name in names)
    return TraceSet("fingerprint", refs, frozenset({EOS}), tuple(traces))


class StepwiseDecoder:
    """Speculative decoding as one would write it first: real caches, one guess after another, no arithmetic."""

    def __init__(self, trace: Trace) -> None:
        self.output = list(trace.output_ids)
        self.prompt = len(trace.prompt_ids)
        self.context = [*trace.prompt_ids, self.output[0]]
        self.caches: dict[int, list[int]] = {}

    @property
    def ended(self) -> bool:
        return len(self.context) == self.prompt + len(self.output)

    def round(self, draft: int | None, gamma: int, threshold: float) -> Round:
        if draft is None:
            return Round(self._commit([])[1])
        cache = self.caches.setdefault(draft, [])
        absorbed = self.context[len(cache) :]
        matches = positions = 0
        for token, then in pairwise(absorbed):
            cache.append(token)
            if len(cache) >= self.prompt:
                positions += 1
                matches += guess(draft, cache)[0] == then
        new = absorbed[-1]
        sent: list[int] = []
        steps, reach, first = 0, 1.0, float("nan")
        while len(sent) < gamma:
            cache.append(new)
            new, sure = guess(draft, cache)
            sure = float(decode(encode(sure)))
            steps += 1
            first = sure if steps == 1 else first
            reach *= sure
            sent.append(new)
            if reach < threshold or new == EOS:
                break
        accepted, tokens = self._commit(sent)
        while cache != self.context[: len(cache)]:
            cache.pop()
        return Round(tokens, len(sent), accepted, steps, len(absorbed) - 1, (matches, positions), first)

    def _commit(self, sent: list[int]) -> tuple[int, tuple[int, ...]]:
        truth = self.output[len(self.context) - self.prompt :]
        accepted = 0
        while accepted < min(len(sent), len(truth)) and sent[accepted] == truth[accepted]:
            accepted += 1
        tokens = tuple(truth[: accepted + 1])
        self.context.extend(tokens)
        return accepted, tokens
