"""What is forwarded, counted: right texts say nothing about work done twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch

from runtime.core import Decision, Request
from runtime.decoding.live import LiveDecoder
from runtime.engine.base import Logits
from runtime.engine.kv_cache import FIRST_CAPACITY
from runtime.engine.transformers_model import TransformersModel
from runtime.session import DecodeSession
from tests.session.tiny_session import guess, keep_all, open_tiny, serve, text
from tests.tiny import KINDS, LOOKUP, PROMPT, SPECS, VOCAB, decoder, drafts, plain_text, request, tiny_network

ALWAYS, NEVER, SOMETIMES = range(len(KINDS))


class Work(NamedTuple):
    """Widths of the forwards, in order: the target's, and those of drafts, which read through its embedding."""

    target: list[int]
    drafts: list[int]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[LiveDecoder], Work]:
    def watching(live: LiveDecoder) -> Work:
        work = Work([], [])
        forward, embed = live.target.forward, live.target.embed

        def counted_forward(tokens: Sequence[int], logits: Logits) -> torch.Tensor:
            work.target.append(len(tokens))
            return forward(tokens, logits)

        def counted_embed(tokens: Sequence[int]) -> torch.Tensor:
            work.drafts.append(len(tokens))
            return embed(tokens)

        monkeypatch.setattr(live.target, "forward", counted_forward)
        monkeypatch.setattr(live.target, "embed", counted_embed)
        return work

    return watching


def live_of(session: DecodeSession) -> LiveDecoder:
    assert isinstance(session.decoder, LiveDecoder)
    return session.decoder


@pytest.mark.parametrize("draft", [ALWAYS, NEVER, SOMETIMES])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_a_draft_forwards_what_it_says_and_no_token_twice(
    draft: int, gamma: int, watch: Callable[[LiveDecoder], Work]
) -> None:
    """transformers #32370: a wrong cache between rounds gave the right text, and that incredibly slowly."""
    live = decoder(margin=0.0)
    live.begin(request(), 0, ())
    work, first = watch(live), True
    while not live.ended():
        done = live.round(draft, drafts()[draft], gamma, 0.0)
        assert work.drafts == ([1 + done.catch_up_tokens, *[1] * (done.steps - 1)] if done.steps else [])
        assert done.steps or live.ended()  # no room for a guess: the last token
        assert work.target == [1 + done.drafted]
        assert done.catch_up_tokens == len(PROMPT) if first else done.catch_up_tokens <= 1
        work.drafts.clear()
        work.target.clear()
        first = False


Schedule = list[tuple[int | None, int]]


@pytest.mark.parametrize(
    "schedule",
    [
        [(SOMETIMES, 8), (None, 0)],
        [(SOMETIMES, 1), (SOMETIMES, 8), (None, 0), (SOMETIMES, 2), (SOMETIMES, 4)],
        [(SOMETIMES, 4), (NEVER, 2), (LOOKUP, 4), (None, 0), (ALWAYS, 1)],
    ],
    ids=["on and off", "every length", "every draft"],
)
def test_switching_every_round_costs_no_more_than_the_rounds(
    schedule: Schedule, watch: Callable[[LiveDecoder], Work]
) -> None:
    """vllm #49548: with a length that changes, throughput collapsed at length 0.

    A draft absorbs what was committed since its last turn, never more, whatever came in between; the target forwards
    once a round.
    """
    live = decoder(margin=0.0)
    tokens = [*PROMPT, live.begin(request(), 0, ()).token]
    work, held = watch(live), dict.fromkeys(range(len(SPECS)), 0)
    turn = 0
    while not live.ended():
        draft, gamma = schedule[turn % len(schedule)]
        behind = 0 if draft is None or draft == LOOKUP else len(tokens) - 1 - held[draft]
        done = live.round(draft, None if draft is None else drafts()[draft], gamma, 0.0)
        assert work.target == [1 + done.drafted]
        if done.steps:
            assert draft is not None
            assert work.drafts == [1 + behind, *[1] * (done.steps - 1)]
            held[draft] = len(tokens) + min(done.accepted, done.steps - 1)
        else:
            assert work.drafts == []
        tokens.extend(done.tokens)
        work.target.clear()
        work.drafts.clear()
        turn += 1
    assert turn > len(schedule)
    assert tuple(tokens[len(PROMPT) :]) == plain_text()


def test_switching_leaves_the_caches_of_plain_decoding() -> None:
    switched, plain = decoder(), decoder()
    for live, lengths in ((switched, (0, 8, 1, 0, 4, 2)), (plain, (0,))):
        live.begin(request(), 0, ())
        turn = 0
        while not live.ended():
            gamma = lengths[turn % len(lengths)]
            index = (NEVER, SOMETIMES)[turn % 2] if gamma else None
            live.round(index, None if index is None else drafts()[index], gamma, 0.0)
            turn += 1
    assert switched.stored_tokens() == plain.stored_tokens()
    end = len(plain.stored_tokens())
    (one,), (other,) = (live.store(0, end, end) for live in (switched, plain))
    torch.testing.assert_close(one.buffer, other.buffer, rtol=1e-4, atol=1e-5)


def test_an_idle_draft_is_never_read(watch: Callable[[LiveDecoder], Work]) -> None:
    """llama.cpp #23052, vllm #6993: a draft that is only there costs time.

    Plain decoding does the same forwards with all drafts resident and with none, and no forward of a draft.
    """
    seen: list[Work] = []
    for resident in (True, False):
        session, _ = open_tiny(n_drafts=3)
        if resident:
            for draft in (ALWAYS, NEVER, SOMETIMES):
                serve(session, [Request("warm", (1, 2, 3), 4)], guess(draft, 1))
            assert all(session.memory.resident(i) for i in range(len(SPECS)))
        else:
            assert not any(session.memory.resident(i) for i in range(len(KINDS)))
        work = watch(live_of(session))
        (outcomes,) = serve(session, [request(20)], keep_all)
        assert text(outcomes) == plain_text()[:20]
        seen.append(work)
    assert seen[0] == seen[1] == Work([len(PROMPT), *[1] * 19], [])


@pytest.mark.parametrize(("draft", "gamma"), [(ALWAYS, 8), (NEVER, 4), (SOMETIMES, 8)])
def test_long_prompts_are_exact_too(draft: int, gamma: int) -> None:
    """transformers #30413: a long prompt gave another text. Buffers grow while guesses are taken back."""
    prompt = tuple((5 * i * i + 3 * i) % VOCAB for i in range(FIRST_CAPACITY - 5))
    model = TransformersModel(tiny_network(max_position_embeddings=512))
    # rotary positions do not depend on the limit, so the drafts of the tiny target are this one's too
    live, ids = LiveDecoder(model, SPECS), list(prompt)
    reference = tiny_network(max_position_embeddings=512)
    with torch.no_grad():
        for _ in range(24):
            ids.append(int(reference(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    tokens = [live.begin(Request("long", prompt, 24), 0, ()).token]
    while not live.ended():
        done = live.round(draft, drafts()[draft], gamma, 0.0)
        assert done.accepted == done.drafted if draft == ALWAYS else True
        tokens.extend(done.tokens)
    assert tuple(tokens) == tuple(ids[len(prompt) :])


def test_every_request_and_every_round_may_name_another_draft() -> None:
    """llama.cpp #10595, vllm #10790, koboldcpp #1207: large, draft, or both, request by request."""
    wanted: dict[str, list[int | None]] = {
        "plain": [None], "one": [ALWAYS], "both": [NEVER, SOMETIMES], "words": [LOOKUP, None],
    }  # fmt: skip
    session, _ = open_tiny(n_drafts=3)
    turn = 0

    def decide(session: DecodeSession) -> Decision:
        nonlocal turn
        assert session.request is not None
        turn += 1
        choices = wanted[session.request.request_id]
        draft = choices[turn % len(choices)]
        return Decision(draft=draft, gamma=0 if draft is None else 2, wait=draft is not None)

    requests = [Request(name, PROMPT, 16) for name in wanted]
    for asked, outcomes in zip(requests, serve(session, requests, decide), strict=True):
        assert text(outcomes) == plain_text()[:16]
        used = {o.decision.draft for o in outcomes[1:-2] if o.round is not None}  # the last round may have no room
        assert used == set(wanted[asked.request_id])
