"""Where a text ends: stop strings over token borders, ending tokens in a block, lengths, contexts, gates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from runtime.core import Request
from runtime.decoding.stopping import StopStrings, TextStream, VisibleText, find_stop, trim
from runtime.errors import UserError
from tests.decoding.whole import decode_all
from tests.tiny import LOOKUP, PROMPT, decoder, plain_text

ALWAYS, NEVER, SOMETIMES = range(3)
PIECES = [bytes([byte]) for byte in range(256)] + [
    word.encode() for word in (" the", "END", "N", "\n\n", "ü", "🎉", "D.")
]


def byte_text(tokens: Sequence[int]) -> str:
    """A byte-level tokenizer in small: tokens are bytes or pieces of several."""
    return b"".join(PIECES[token] for token in tokens).decode("utf-8", "replace")


def words(tokens: Sequence[int]) -> str:
    """Text of the tiny target's tokens."""
    return " ".join(f"w{token}" for token in tokens)


def ids_of(written: str) -> list[int]:
    return list(written.encode())


def first_end(tokens: Sequence[int], stops: Sequence[str]) -> int | None:
    """The slow rule: tokens to keep, by decoding the whole text again for every token."""
    ends = (
        end
        for end in range(1, len(tokens) + 1)
        if find_stop(byte_text(tokens[:end]).rstrip("\ufffd"), stops) is not None
    )
    return next(ends, None)


def fed(search: StopStrings, tokens: Sequence[int], sizes: Sequence[int]) -> int | None:
    """Tokens kept when they come in blocks."""
    done, size = 0, itertools.cycle(sizes)
    while done < len(tokens):
        block = tokens[done : done + next(size)]
        kept = search.push(block)
        if kept is not None:
            return done + kept
        done += len(block)
    return None


texts = st.text(alphabet="aEND. \nü🎉", max_size=30)
stop_lists = st.lists(st.text(alphabet="aEND. \nü🎉", min_size=1, max_size=4), min_size=1, max_size=3)
tokenised = st.lists(st.sampled_from(range(len(PIECES))), max_size=20) | texts.map(ids_of)


@given(texts, st.lists(st.integers(1, 5), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_stream_decodes_the_whole_text(written: str, sizes: list[int]) -> None:
    stream = TextStream(byte_text)
    given_out = ""
    for token in ids_of(written):
        given_out += stream.push(token)
        assert written.startswith(given_out)
    assert given_out + stream.finish() == written


@given(tokenised, stop_lists, st.lists(st.integers(1, 9), min_size=1, max_size=3))
@settings(max_examples=120, deadline=None)
def test_the_token_that_completes_a_stop_string_is_the_last(
    tokens: list[int], stops: list[str], sizes: list[int]
) -> None:
    """transformers #48039: strings over token borders, completed in the middle of a block, several at once."""
    assert fed(StopStrings(stops, byte_text), tokens, sizes) == first_end(tokens, stops)


@given(tokenised, stop_lists, st.lists(st.integers(1, 9), min_size=1, max_size=3))
@settings(max_examples=120, deadline=None)
def test_nothing_is_shown_that_must_be_taken_back(tokens: list[int], stops: list[str], sizes: list[int]) -> None:
    kept = tokens[: first_end(tokens, stops)]
    visible, shown, at = VisibleText(byte_text, stops), "", 0
    expected = trim(byte_text(kept), stops)
    for size in itertools.cycle(sizes):
        if at >= len(kept):
            break
        shown += visible.push(kept[at : at + size])
        at += size
        assert expected.startswith(shown)
    assert shown + visible.finish() == expected


def test_the_string_that_ends_first_wins() -> None:
    assert trim("one two three", ["three", "two"]) == "one "
    assert trim("abcd", ["bc", "abc"]) == ""  # both end with c: the longer one
    assert trim("abcd", ["abcd", "b"]) == "a"
    assert trim("abcd", ["x"]) == trim("abcd", []) == "abcd"
    assert fed(StopStrings(["END.", "N"], byte_text), ids_of("an END."), [9]) == 5


def test_a_token_that_ends_in_half_a_character_completes_a_string() -> None:
    tokens = [*ids_of("a EN"), *ids_of("D"), 0xF0, 0x9F]
    pieces = [*PIECES, b"D\xf0"]

    def decode(some: Sequence[int]) -> str:
        return b"".join(pieces[token] for token in some).decode("utf-8", "replace")

    assert StopStrings(["END"], decode).push([*tokens[:4], len(PIECES), 0x9F]) == 5


def test_bytes_that_never_become_a_character_are_not_held_for_ever() -> None:
    visible = VisibleText(byte_text)
    shown = visible.push([0x80] * 20)
    assert len(shown) >= 8 and len(shown + visible.finish()) == 20


@pytest.mark.parametrize("length", [100, 400])
def test_the_cost_of_a_token_does_not_grow_with_the_text(length: int) -> None:
    decoded = 0

    def counting(tokens: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(tokens)
        return byte_text(tokens)

    tokens = ids_of("ü🎉ab" * length)[:length]
    assert StopStrings(["never there"], counting).push(tokens) is None
    assert decoded <= 12 * length


def test_a_failing_tokenizer_leaves_the_search_as_it_was() -> None:
    failing = False

    def sometimes(tokens: Sequence[int]) -> str:
        if failing and tokens[-1] == ord("D"):
            raise RuntimeError("no")
        return byte_text(tokens)

    search = StopStrings(["END"], sometimes)
    search.push(ids_of("E"))
    failing = True
    with pytest.raises(RuntimeError, match="no"):
        search.push(ids_of("ND"))
    failing = False
    assert search.push(ids_of("ND")) == 2


def test_tokenizers_that_need_context() -> None:
    """A decoder that strips the first blank and one that collects bytes, as SentencePiece tokenizers do."""
    vocab = {"<unk>": 0, "▁the": 1, "▁end": 2, **{f"<0x{byte:02X}>": 10 + byte for byte in range(256)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens)))

    tokens = [1, *(10 + byte for byte in "é🎉".encode()), 2, 1]
    assert decode(tokens) == "theé🎉 end the"
    visible = VisibleText(decode)
    assert "".join(visible.push([token]) for token in tokens) + visible.finish() == decode(tokens)
    assert StopStrings(["🎉 en"], decode).push(tokens) == len(tokens) - 1


# -- in the decoder ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [None, ALWAYS, SOMETIMES, LOOKUP])
@pytest.mark.parametrize("offset", range(1, 11))
def test_a_stop_string_cuts_the_block(draft: int | None, offset: int) -> None:
    """transformers #48039, #47912: the block ends with the token that completes the string, at every offset."""
    stop = words(plain_text()[offset : offset + 2])[1:]  # over a token border, without the first letter
    tokens = plain_text()
    expected = next(end for end in range(1, 40) if stop in words(tokens[:end]))
    asked = Request("r", PROMPT, 40, stop=("nowhere", stop))
    live = decoder(text=words)
    if draft == LOOKUP:
        live._lookups[LOOKUP].remember((*PROMPT, *tokens))
    assert decode_all(live, asked, draft, 8) == tokens[:expected]


def test_a_string_that_began_in_the_prompt_is_none() -> None:
    stop = f"{PROMPT[-1]} w{plain_text()[0]} "
    asked = Request("r", PROMPT, 12, stop=(stop,))
    assert decode_all(decoder(text=words), asked, ALWAYS, 4) == plain_text()[:12]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="stop strings must not be empty"):
        decoder(text=words).begin(Request("r", PROMPT, 4, stop=("x", "")), 0, ())
    with pytest.raises(UserError, match="stop strings need a decoder that knows the tokenizer"):
        decoder().begin(Request("r", PROMPT, 4, stop=("x",)), 0, ())
