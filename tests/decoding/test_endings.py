"""Where a text ends without a stop string: ending tokens in a block, lengths, contexts; and what a round forwards."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest
import torch

from runtime.core import STOP_LEVELS, Decision, DraftSpec
from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.live import LiveDecoder
from runtime.engine.base import Logits
from runtime.errors import UserError
from tests.decoding.whole import decode_all
from tests.session.tiny_session import guess, open_tiny, serve, text
from tests.tiny import KINDS, LOOKUP, PROMPT, SPECS, decoder, drafts, plain_text, request, target

ALWAYS, NEVER, SOMETIMES = range(3)


@pytest.mark.parametrize("draft", [ALWAYS, LOOKUP])
@pytest.mark.parametrize("offset", range(1, 10))
def test_an_ending_token_ends_the_text_at_every_offset_of_a_block(draft: int, offset: int) -> None:
    """transformers #47912, #48981: tokens behind an ending token in the block; #31301: look-up copies an ending token.

    Two tokens end the text; the other one comes later or never.
    """
    tokens = plain_text()
    later = tokens[offset + 12]
    expected = next(end for end in range(1, 41) if tokens[end - 1] in (tokens[offset], later))
    live = decoder()
    live._lookups[LOOKUP].remember((*PROMPT, *tokens))  # it would go on copying behind the ending token
    got = decode_all(live, request(eos=(tokens[offset], later, 60)), draft, 8)
    assert got == tokens[:expected]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_fewer_tokens_are_asked_for_than_are_guessed(most: int) -> None:
    """transformers #47195, #46993: max_new_tokens below the draft length."""
    session, _ = open_tiny()
    for outcomes in serve(session, [request(most)] * 2, guess(ALWAYS, 8)):
        assert text(outcomes) == plain_text()[:most]
        assert all(o.round.drafted < most for o in outcomes if o.round is not None)


def test_equal_calls_give_equal_texts_and_rounds() -> None:
    """transformers #28759: a call must not depend on the calls before it."""
    session, _ = open_tiny()
    first, *others = serve(session, [request(30)] * 3, guess(SOMETIMES, 4))
    for outcomes in others:
        assert [o.round for o in outcomes[2:]] == [o.round for o in first[2:]]
        assert text(outcomes) == text(first) == plain_text()[:30]


def test_a_text_may_reach_the_very_end_of_the_context() -> None:
    limit = target().context_limit
    prompt = tuple((5 * i * i + i) % 61 for i in range(limit - 12))
    for draft in (None, ALWAYS, SOMETIMES):
        got = decode_all(decoder(), request(13, prompt=prompt), draft, 8)
        assert got == plain_text(13, prompt)
    with pytest.raises(UserError, match="shorten one of them"):
        decoder().begin(request(14, prompt=prompt), 0, ())


@pytest.mark.parametrize("room", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("wait", [False, True])
def test_a_draft_never_reads_beyond_its_context(room: int, wait: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = len(PROMPT) + 1 + room
    specs = tuple(DraftSpec(spec.name, spec.bytes, spec.loadable, limit) for spec in SPECS)
    longest, forward = 0, ModelDrafter._forward

    def watching(self: ModelDrafter, tokens: Sequence[int], keep: int) -> object:
        nonlocal longest
        rows = forward(self, tokens, keep)
        longest = max(longest, self.seen)
        return rows

    monkeypatch.setattr(ModelDrafter, "_forward", watching)
    session, _ = open_tiny()
    session.decoder.drafts = session.drafts = specs  # type: ignore[attr-defined]
    outcomes = serve(session, [request(20)], lambda _: Decision(draft=ALWAYS, gamma=8, wait=wait))[0]
    assert text(outcomes) == plain_text()[:20]
    assert longest <= limit
    assert wait <= (longest > 0)  # who waits for the draft gets what guesses still fit


def test_without_a_gate_every_guess_is_sent() -> None:
    """transformers #48039: a missing threshold meant a default one. There is none: 0 is off, and nothing is implied."""
    assert STOP_LEVELS[Decision().stop] == 0.0
    assert inspect.signature(LiveDecoder.round).parameters["threshold"].default is inspect.Parameter.empty
    for kind in (ALWAYS, NEVER, SOMETIMES):
        live = decoder()
        live.begin(request(), 0, ())
        assert live.round(kind, drafts()[kind], 8, 0.0).drafted == 8


@pytest.mark.parametrize("draft", [None, *range(len(KINDS)), LOOKUP])
def test_a_round_forwards_the_pending_token_and_the_guesses(draft: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers #32370: the cost of a round is what is forwarded, so count it."""
    live = decoder(margin=0.0)
    live.begin(request(), 0, ())
    widths: list[int] = []
    forward = live.target.forward

    def counting(tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        widths.append(len(tokens))
        return forward(tokens, logits)

    monkeypatch.setattr(live.target, "forward", counting)
    while not live.ended():
        done = live.round(draft, None if draft is None else drafts()[draft], 4, 0.0)
        assert widths == [1 + done.drafted]
        widths.clear()
