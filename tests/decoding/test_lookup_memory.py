"""The look-up drafter's memory: what it takes, that it is bounded, and that saving it changed no guess."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core import DraftSpec, MemoryConfig
from runtime.decoding.drafters.lookup import BYTES_PER_TOKEN, MEMORY_TOKENS, LookupDrafter, capacity_bytes
from runtime.memory.manager import MemoryManager
from runtime.zoo import Zoo
from tests.factories import HandLoader, make_costs
from tests.tiny_zoo import TinyZoo

NO_EOS: frozenset[int] = frozenset()


class TupleIndex:
    """The index as it was: a dictionary of tuples in every generation. Slow to fill memory, easy to believe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.young: tuple[list[int], dict[tuple[int, ...], int]] = ([-1], {})
        self.old: tuple[list[int], dict[tuple[int, ...], int]] = ([-1], {})
        self.start = self.synced = 1

    def begin(self) -> None:
        if len(self.young[0]) > self.limit:
            self.old, self.young = self.young, ([-1], {})
        if self.young[0][-1] != -1:
            self.young[0].append(-1)
        self.start, self.synced = len(self.young[0]), 0

    def guess(self, text: Sequence[int], gamma: int) -> tuple[int, ...]:
        tokens, index = self.young
        for token in text[self.synced :]:
            for n in (4, 3, 2):
                if len(tokens) - n >= self.start:
                    index[tuple(tokens[-n:])] = len(tokens)
            tokens.append(token)
        self.synced = len(text)
        for n in range(min(4, len(text)), 1, -1):
            for known, where in (self.young, self.old):
                at = where.get(tuple(tokens[-n:]))
                if at is not None:
                    return self.copied(known, at, gamma)
        return ()

    def copied(self, known: list[int], at: int, gamma: int) -> tuple[int, ...]:
        guesses: list[int] = []
        while len(guesses) < gamma:
            if at < len(known):
                token = known[at]
            elif known is self.young[0]:
                token = guesses[at - len(known)]
            else:
                break
            if token == -1:
                break
            guesses.append(token)
            at += 1
        return tuple(guesses)


random_texts = st.lists(st.lists(st.integers(0, 5), max_size=40), min_size=1, max_size=8)
repetitive_texts = st.lists(
    st.tuples(st.lists(st.integers(0, 50_000), min_size=1, max_size=5), st.integers(1, 9)).map(lambda p: p[0] * p[1]),
    min_size=1,
    max_size=8,
)


@given(random_texts | repetitive_texts, st.sampled_from([96, 128, 1000]))  # no text fills a generation by itself
@settings(max_examples=60, deadline=None)
def test_guesses_are_those_of_the_plain_index(texts: list[list[int]], memory_tokens: int) -> None:
    drafter, plain = LookupDrafter(memory_tokens=memory_tokens), TupleIndex(memory_tokens // 2)
    for text in texts:
        drafter.begin()
        plain.begin()
        for end in range(1, len(text) + 1):
            guesses = drafter.propose(text[:end], 0, 5, 0.0, NO_EOS).tokens
            assert guesses == plain.guess(text[:end], 5)
            assert (drafter.confidence(text[:end]) > 0.0) == bool(guesses)


def test_growing_tables_lose_nothing() -> None:
    """One text beyond what the tables are made for, so they grow; it stays in one generation."""
    source = random.Random(1)
    text = [source.randrange(12) for _ in range(900)]
    drafter, plain = LookupDrafter(memory_tokens=1000), TupleIndex(500)
    drafter.begin()
    plain.begin()
    for end in range(1, len(text), 7):
        assert drafter.propose(text[:end], 0, 3, 0.0, NO_EOS).tokens == plain.guess(text[:end], 3)


def distinct(count: int, seed: int = 0) -> list[int]:
    """Tokens without any repetition worth the name: the most n-grams to index."""
    source = random.Random(seed)
    return [source.randrange(1 << 20) for _ in range(count)]


@pytest.mark.parametrize("memory_tokens", [2048, 5000])
def test_a_token_takes_few_bytes_and_all_together_never_more_than_the_capacity(memory_tokens: int) -> None:
    texts = [distinct(size, size) for size in (memory_tokens // 2, 700, 2 * memory_tokens + 100, 300, memory_tokens)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        drafter = LookupDrafter(memory_tokens=memory_tokens)
        drafter.begin()
        drafter.sync(texts[0])  # the younger generation is full
        taken = tracemalloc.get_traced_memory()[0] - before
        assert 8 < taken / len(texts[0]) <= BYTES_PER_TOKEN
        for text in texts[1:]:
            drafter.begin()
            drafter.sync(text)
            drafter.remember(text[:500])
            assert drafter.remembered_tokens <= 2 * memory_tokens
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= drafter.capacity_bytes == capacity_bytes(memory_tokens)


def test_the_plain_index_takes_ten_times_as_much() -> None:
    text = distinct(2000)
    tracemalloc.start()
    plain = TupleIndex(10_000)
    plain.begin()
    plain.guess(text, 1)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / len(text) > 7 * BYTES_PER_TOKEN


def test_the_budget_counts_the_memory(tiny_zoo: TinyZoo) -> None:
    zoo: Zoo = tiny_zoo.zoo
    spec = zoo.specs(64)[-1]
    assert (spec.name, spec.loadable, spec.bytes) == ("lookup", False, capacity_bytes(MEMORY_TOKENS))
    drafts = (DraftSpec("code", 1000), spec)
    manager = MemoryManager(MemoryConfig(spec.bytes + 900), drafts, HandLoader(), make_costs(("code", "lookup")))
    assert manager.used_bytes == spec.bytes and not manager.could_ever_fit(0)


def test_a_document_given_ahead_is_quoted() -> None:
    document = distinct(200)
    drafter = LookupDrafter(memory_tokens=1000)
    drafter.remember(document)
    drafter.begin()
    assert drafter.propose([7, *document[50:53]], 1, 4, 0.0, NO_EOS).tokens == tuple(document[53:57])


def test_a_document_may_come_in_the_middle_of_a_request() -> None:
    drafter = LookupDrafter(memory_tokens=1000)
    drafter.begin()
    text = [1, 2, 3, 9, 1, 2]
    assert drafter.propose(text, 1, 2, 0.0, NO_EOS).tokens == (3, 9)
    drafter.remember([3, 9, 40, 41, 42])
    assert drafter.propose([*text, 3], 1, 4, 0.0, NO_EOS).tokens == (9, 1, 2, 3)  # this very text comes first
    assert drafter.propose([*text, 3, 9, 40], 1, 2, 0.0, NO_EOS).tokens == (41, 42)


@pytest.mark.parametrize("given_before", [0, 3, 170])
def test_of_a_long_document_the_end_is_kept_and_cuts_do_not_show(given_before: int) -> None:
    document = distinct(1000)
    for at in range(805, 999, 3):
        drafter = LookupDrafter(memory_tokens=400)
        drafter.remember(list(range(given_before)))
        drafter.remember(document)
        assert drafter.remembered_tokens <= 800
        drafter.begin()
        assert drafter.propose(document[at - 4 : at], 0, 1, 0.0, NO_EOS).tokens == (document[at],)


def test_a_request_longer_than_the_memory_keeps_its_latest_part() -> None:
    text = distinct(1000)
    drafter = LookupDrafter(memory_tokens=100)
    drafter.begin()
    for end in range(1, len(text)):
        drafter.sync(text[:end])
        assert drafter.remembered_tokens <= 200
    latest = [*text, *text[-60:-56]]
    assert drafter.propose(latest, 1, 3, 0.0, NO_EOS).tokens == tuple(text[-56:-53])
