"""Whatever guesses, how far and when it stops: the text is the target's own."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core import GAMMAS, Request, Round
from runtime.decoding.clock import WallClock
from runtime.decoding.live import LiveDecoder
from runtime.errors import UserError
from tests.tiny import KINDS, LOOKUP, PROMPT, SPECS, VOCAB, decoder, draft, drafts, plain_text, request, target

ALWAYS, NEVER, SOMETIMES = range(3)


def run(
    live: LiveDecoder, asked: Request, schedule: list[tuple[int | None, int, float]]
) -> tuple[tuple[int, ...], list[Round]]:
    """Decode a request with a schedule of (draft, gamma, threshold) that repeats."""
    tokens = [live.begin(asked, 0, ()).token]
    rounds: list[Round] = []
    for index, gamma, threshold in itertools.cycle(schedule):
        if len(tokens) >= asked.max_new_tokens or tokens[-1] in asked.eos_ids:
            return tuple(tokens), rounds
        done = live.round(index, None if index is None else drafts()[index], gamma, threshold)
        assert len(done.tokens) <= done.accepted + 1 <= done.drafted + 1
        rounds.append(done)
        tokens.extend(done.tokens)
        assert live.target.length == len(asked.prompt_ids) + len(tokens) - 1
    raise AssertionError("unreachable")


def test_text_has_variety() -> None:
    assert len(set(plain_text())) > 12, "a text that repeats itself proves nothing"


@pytest.mark.parametrize("index", [None, *range(len(SPECS))])
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_text_is_the_targets_own(index: int | None, gamma: int, threshold: float) -> None:
    """transformers #30042, llama.cpp #23302, #27975: assisted text was another one, at some lengths or drafts."""
    text, _ = run(decoder(), request(), [(index, gamma, threshold)])
    assert text == plain_text()


@pytest.mark.parametrize("gamma", GAMMAS)
def test_target_as_its_own_draft_is_always_accepted(gamma: int) -> None:
    """mlx-examples #149: off by one when the cache was cut."""
    _, rounds = run(decoder(), request(), [(ALWAYS, gamma, 0.0)])
    for done in rounds[:-1]:
        assert done.drafted == done.accepted == done.steps == gamma
        assert len(done.tokens) == gamma + 1
    assert all(done.scored[0] == done.scored[1] for done in rounds)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_hostile_draft_is_never_accepted(gamma: int) -> None:
    _, rounds = run(decoder(), request(), [(NEVER, gamma, 0.0)])
    assert len(rounds) == 39
    for done in rounds:
        assert done.accepted == 0
        assert len(done.tokens) == 1


def test_partial_draft_is_sometimes_accepted() -> None:
    _, rounds = run(decoder(), request(60), [(SOMETIMES, 4, 0.0)])
    accepted = sum(done.accepted for done in rounds)
    assert 0 < accepted < sum(done.drafted for done in rounds)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 5])
@pytest.mark.parametrize("index", range(len(SPECS)))
@pytest.mark.parametrize("gamma", GAMMAS)
def test_never_more_than_asked(max_new_tokens: int, index: int, gamma: int) -> None:
    """transformers #47195, #46993: a block over max_new_tokens."""
    text, rounds = run(decoder(), request(max_new_tokens), [(index, gamma, 0.0)])
    assert text == plain_text()[:max_new_tokens]
    assert all(done.drafted < max_new_tokens for done in rounds)


@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("index", [ALWAYS, SOMETIMES, LOOKUP])
def test_ending_token_cuts_the_block(offset: int, index: int) -> None:
    """transformers #47912, #31301: the text went on behind an ending token."""
    text = plain_text()
    end = text.index(text[offset])
    got, rounds = run(decoder(), request(eos=(text[offset],)), [(index, 4, 0.0)])
    assert got == text[: end + 1]
    if rounds and len(rounds[-1].tokens) <= rounds[-1].accepted:
        assert len(rounds[-1].tokens) == rounds[-1].accepted  # it ended with an accepted guess


def test_guessing_ends_with_an_ending_token() -> None:
    text = plain_text()
    first = next(i for i, token in enumerate(text) if i >= 2 and token not in text[:i])
    live = decoder()
    live.begin(request(eos=(text[first],)), 0, ())
    done = live.round(ALWAYS, drafts()[ALWAYS], 8, 0.0)
    if first <= 8:
        assert done.drafted == done.steps == done.accepted == len(done.tokens) == first


def test_counters_of_catch_up() -> None:
    live = decoder()
    live.begin(request(), 0, ())
    assert live.catch_up_tokens(ALWAYS) == len(PROMPT)  # all but the pending token
    first = live.round(ALWAYS, drafts()[ALWAYS], 4, 0.0)
    assert (first.catch_up_tokens, first.steps, first.scored) == (len(PROMPT), 4, (1, 1))  # the first answer token
    assert live.catch_up_tokens(ALWAYS) == 1  # the last accepted guess was never an input
    second = live.round(ALWAYS, drafts()[ALWAYS], 1, 0.0)
    assert (second.catch_up_tokens, second.steps, second.scored) == (1, 1, (1, 1))
    for _ in range(3):
        live.round(None, None, 0, 0.0)
    assert live.catch_up_tokens(ALWAYS) == 4
    third = live.round(ALWAYS, drafts()[ALWAYS], 1, 0.0)
    assert (third.catch_up_tokens, third.scored) == (4, (4, 4))
    never = live.round(NEVER, drafts()[NEVER], 2, 0.0)
    assert never.scored[0] == 0 < never.scored[1]
    assert live.catch_up_tokens(NEVER) == 0


def test_every_generated_token_is_evidence_at_most_once() -> None:
    live, count = decoder(), 0
    live.begin(request(60), 0, ())
    done = 1
    for gamma in (1, 4, 2, 8, 1, 4):
        turn = live.round(SOMETIMES, drafts()[SOMETIMES], gamma, 0.0)
        count += turn.scored[1] + min(turn.drafted, turn.accepted + 1)
        done += len(turn.tokens)
    assert count == done or count == done - 1  # the bonus of a last full acceptance is not scored yet


def test_guessing_ends_behind_the_unsure_guess() -> None:
    live = decoder()
    live.begin(request(), 0, ())
    done = live.round(ALWAYS, drafts()[ALWAYS], 8, 1.0)  # no product of probabilities reaches one
    assert (done.drafted, done.accepted, done.steps, len(done.tokens)) == (1, 1, 1, 2)
    assert 0.0 < done.confidence < 1.0
    sure = live.round(ALWAYS, drafts()[ALWAYS], 8, 1e-9)
    assert (sure.drafted, sure.steps) == (8, 8)


def test_higher_thresholds_send_a_prefix() -> None:
    lengths = []
    for threshold in (0.0, 0.05, 0.2, 0.5, 0.9):
        live = decoder()
        live.begin(request(), 0, ())
        done = live.round(ALWAYS, drafts()[ALWAYS], 8, threshold)
        assert done.steps == done.drafted
        lengths.append(done.drafted)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 8 > lengths[-1]


def test_guard_decides_every_position_when_the_scale_is_huge() -> None:
    for index in (ALWAYS, SOMETIMES, LOOKUP):
        text, rounds = run(decoder(margin=1e9), request(), [(index, 4, 0.0)])
        assert text == plain_text()
        assert sum(done.guard_forwards for done in rounds) > 0
    plain, rounds = run(decoder(margin=1e9), request(), [(None, 0, 0.0)])
    assert plain == plain_text()
    assert sum(done.guard_forwards for done in rounds) == 0


def test_guard_does_not_change_the_counters() -> None:
    _, free = run(decoder(margin=0.0), request(), [(SOMETIMES, 4, 0.0)])
    _, guarded = run(decoder(margin=1e9), request(), [(SOMETIMES, 4, 0.0)])
    assert [done._replace(guard_forwards=0, confidence=0) for done in guarded] == [
        done._replace(guard_forwards=0, confidence=0) for done in free
    ]


schedules = st.lists(
    st.tuples(st.sampled_from([None, *range(len(SPECS))]), st.sampled_from(GAMMAS), st.sampled_from([0.0, 0.2, 0.6])),
    min_size=1,
    max_size=8,
)


@given(schedule=schedules, max_new_tokens=st.integers(1, 40), end=st.none() | st.integers(0, 39))
@settings(max_examples=40, deadline=None)
def test_any_schedule_gives_the_plain_text(
    schedule: list[tuple[int | None, int, float]], max_new_tokens: int, end: int | None
) -> None:
    text = plain_text()
    eos = () if end is None else (text[end],)
    expected = text[:max_new_tokens]
    if eos and eos[0] in expected:
        expected = expected[: expected.index(eos[0]) + 1]
    live = decoder()
    assert run(live, request(max_new_tokens, eos), schedule)[0] == expected
    assert run(live, request(max_new_tokens, eos), schedule)[0] == expected  # a used decoder is as good as a new one


def test_two_equal_calls_have_equal_lengths() -> None:
    """transformers #28759: an adapted length lived on into the next call."""
    live = decoder()
    first = run(live, request(), [(SOMETIMES, 4, 0.2)])
    assert run(live, request(), [(SOMETIMES, 4, 0.2)]) == first


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("reuse", [1, 7, len(PROMPT) - 1])
def test_reused_prefix_changes_nothing_but_the_work(gamma: int, reuse: int) -> None:
    """transformers #31644, MemOS #2301: the draft was given the target's cache; the stored one was changed in place."""
    live = decoder()
    run(live, request(), [(SOMETIMES, 4, 0.0)])  # leaves rejected guesses behind, if anything does
    (stored,), tokens = live.store(0, live.target.length, live.target.length), live.stored_tokens()
    assert stored.length == len(tokens) == len(PROMPT) + 39
    before = [(keys.clone(), values.clone()) for keys, values in stored.layers]
    prefill = live.begin(request(), reuse, [stored])
    assert (prefill.prefill_tokens, prefill.reused_tokens) == (len(PROMPT) - reuse, reuse)
    text = [prefill.token]
    while len(text) < 40:
        index = SOMETIMES if gamma else None
        text.extend(live.round(index, drafts()[SOMETIMES], gamma, 0.0).tokens)
    assert tuple(text) == plain_text()
    for (keys, values), (keys_then, values_then) in zip(stored.layers, before, strict=True):
        assert torch.equal(keys, keys_then)
        assert torch.equal(values, values_then)


def test_near_tie_behind_a_reused_prefix_is_decided_by_the_whole_prompt() -> None:
    live = decoder(margin=1e9)
    live.begin(request(), 0, ())
    prefill = live.begin(request(), 5, live.store(0, live.target.length, live.target.length))
    assert prefill.token == plain_text()[0]
    assert (prefill.reused_tokens, prefill.guard_forwards) == (0, 1)
    assert prefill.prefill_tokens == 2 * len(PROMPT) - 5


def test_cache_after_rejections_equals_cache_never_drafted() -> None:
    """vllm #43559, sglang #24175: rejected guesses stayed in the cache."""
    drafted, plain = decoder(), decoder()
    run(drafted, request(), [(NEVER, 8, 0.0)])
    run(plain, request(), [(None, 0, 0.0)])
    (one_kv,), (other_kv,) = (live.store(0, live.target.length, live.target.length) for live in (drafted, plain))
    for one, other in zip(one_kv.layers, other_kv.layers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["draft", "target"])
def test_interrupt_leaves_a_consistent_state(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live = decoder()
    tokens = [live.begin(request(), 0, ()).token]
    payload = draft("sometimes")
    network: Any = payload.net.body if where == "draft" else live.target
    module = network.layers[0] if where == "draft" else network.model.model.layers[1]
    calls = 0

    def interrupting(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls in (2, 4):
            raise KeyboardInterrupt

    hook = module.mlp.register_forward_hook(interrupting)
    while len(tokens) < 40:
        length = live.target.length
        try:
            tokens.extend(live.round(SOMETIMES, payload, 4, 0.0).tokens)
        except KeyboardInterrupt:
            assert live.target.length == length
    hook.remove()
    assert calls > 4
    assert tuple(tokens) == plain_text()


def test_evicted_draft_starts_over() -> None:
    live = decoder()
    live.begin(request(), 0, ())
    live.round(ALWAYS, drafts()[ALWAYS], 4, 0.0)
    live.forget_draft(ALWAYS)
    assert live.catch_up_tokens(ALWAYS) == len(PROMPT) + 5
    done = live.round(ALWAYS, drafts()[ALWAYS], 4, 0.0)
    assert (done.catch_up_tokens, done.accepted) == (len(PROMPT) + 5, 4)


def test_drafts_that_are_reloaded_do_not_keep_old_state() -> None:
    live = decoder()
    live.begin(request(), 0, ())
    live.round(ALWAYS, drafts()[ALWAYS], 4, 0.0)
    done = live.round(ALWAYS, draft("always"), 4, 0.0)  # another object under the same index
    assert done.catch_up_tokens == len(PROMPT) + 5


def test_draft_of_a_larger_vocabulary_is_refused() -> None:
    """llama.cpp #17480: ids beyond the target's vocabulary."""
    live = decoder()
    live.begin(request(), 0, ())
    foreign = draft("sometimes")
    object.__setattr__(foreign, "vocab", (*foreign.vocab[:-1], VOCAB))
    with pytest.raises(UserError, match="another target"):
        live.round(SOMETIMES, foreign, 4, 0.0)
    assert live.round(None, None, 0, 0.0).tokens == plain_text()[1:2]


def test_wrong_requests_are_refused() -> None:
    live = decoder()
    with pytest.raises(UserError, match="vocabulary"):
        live.begin(request(prompt=(1, VOCAB)), 0, ())
    with pytest.raises(UserError, match="context"):
        live.begin(request(200), 0, ())
    with pytest.raises(RuntimeError, match="begin"):
        live.round(None, None, 0, 0.0)
    with pytest.raises(ValueError, match="reuse"):
        live.begin(request(), len(PROMPT), ())
    live.begin(request(2), 0, ())
    live.round(None, None, 0, 0.0)
    with pytest.raises(RuntimeError, match="behind the end"):
        live.round(None, None, 0, 0.0)
    with pytest.raises(ValueError, match="LoadedDraft"):
        live.begin(request(), 0, ())
        live.round(ALWAYS, None, 4, 0.0)


def test_the_last_token_of_the_context_can_be_written() -> None:
    limit = target().context_limit
    asked = request(limit + 1 - len(PROMPT))
    text, _ = run(decoder(), asked, [(ALWAYS, 8, 0.0)])
    assert len(text) == limit + 1 - len(PROMPT)


def test_predictions_and_confidence() -> None:
    live = decoder()
    assert live.predicted().tolist() == [0.5] * len(SPECS)
    live.begin(request(), 0, ())
    assert math.isnan(live.lookup_confidence(ALWAYS))
    assert 0.0 <= live.lookup_confidence(LOOKUP) < 1.0
    assert len(KINDS) == LOOKUP


def test_clock_waits_for_the_device() -> None:
    """pytorch #27902: timed without synchronising."""
    calls: list[int] = []
    clock = WallClock(lambda: calls.append(1))
    assert clock.now_s() <= clock.now_s()
    assert len(calls) == 2
