"""The radix tree over blocks: it finds the longest stored prefix, token by token, and shares what texts share."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core import BLOCK_TOKENS
from runtime.memory.kv_store import KVStore
from runtime.memory.kv_tree import KVTree

N = BLOCK_TOKENS
# Texts that share beginnings of any length: a common trunk, left at some point for another continuation.
texts = st.builds(
    lambda leave, other, length: tuple([*range(leave), *range(1000 * other, 1000 * other + 5 * N)][:length]),
    st.integers(0, 4 * N),
    st.integers(1, 3),
    st.integers(1, 5 * N),
)


def keep(store: KVStore, tokens: tuple[int, ...]) -> int:
    _, start, end = store.missing(tokens)
    return len(store.insert(tokens, [object()] * ((end - start) // N), 0.0))


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(kept=st.lists(texts, max_size=6), prompt=texts)
@settings(deadline=None)
def test_match_is_the_longest_common_prefix_with_any_stored_text(
    kept: list[tuple[int, ...]], prompt: tuple[int, ...]
) -> None:
    store = KVStore(1)
    for text in kept:
        keep(store, text)
    match = store.match(prompt)
    assert match.tokens == max((common(text[: len(text) // N * N], prompt[:-1]) for text in kept), default=0)
    assert (len(match.path) - 1) * N < match.tokens <= len(match.path) * N or not match.path
    assert [node.depth for node in match.path] == list(range(len(match.path)))


def test_one_prompt_token_is_always_left() -> None:
    store = KVStore(1)
    keep(store, tuple(range(2 * N)))
    assert store.match(tuple(range(2 * N))).tokens == 2 * N - 1
    assert store.match((0,)).tokens == 0
    assert store.match(tuple(range(N + 1))).tokens == N


def test_shared_blocks_are_stored_once() -> None:
    store = KVStore(10)
    document = tuple(range(3 * N))
    assert keep(store, (*document, *range(500, 500 + N))) == 4
    assert keep(store, (*document, *range(600, 600 + N + 5))) == 1
    assert store.bytes == 5 * N * 10
    assert keep(store, document) == 0


def test_names_are_those_of_the_whole_prefix() -> None:
    tree, other = KVTree(), KVTree()
    a = tree.add(tree.add(tree.root, (1,) * N), (2,) * N)
    same = other.add(other.add(other.root, (1,) * N), (2,) * N)
    elsewhere = other.add(other.add(other.root, (3,) * N), (2,) * N)
    assert a.name() == same.name() != elsewhere.name()
    assert len(a.name()) == 64
