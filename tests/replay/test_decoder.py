"""The replay decoder against a decoder that really runs its drafts, and its prices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.replay.bank import TraceBank
from envs.replay.clock import VirtualClock
from envs.replay.decoder import ReplayDecoder
from envs.replay.loader import VirtualLoader
from envs.traces import Trace
from runtime.control.topic import TopicPredictor
from runtime.core import GAMMAS, Request
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.errors import UserError
from runtime.profile import CostModel
from tests.factories import NAMES, make_costs, make_profile, make_specs
from tests.replay.scripted import EOS, StepwiseDecoder, make_trace, make_traces


def make_decoder(trace: Trace, **options: Any) -> tuple[ReplayDecoder, VirtualClock, VirtualLoader]:
    costs = make_costs()
    clock = VirtualClock()
    loader = VirtualLoader(costs, clock)
    bank = TraceBank(make_traces([trace]), make_specs(), costs, **options)
    return ReplayDecoder(bank, loader), clock, loader


def make_request(trace: Trace, max_new_tokens: int = 0) -> Request:
    eos_ids = frozenset({EOS})
    return Request(trace.prompt_id, trace.prompt_ids, max_new_tokens or len(trace.output_ids), eos_ids)


CHOICE = st.tuples(
    st.sampled_from([None, 0, 1]), st.sampled_from(GAMMAS), st.sampled_from([0.0, 0.2, 0.4, 0.6]), st.booleans()
)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 40), st.lists(CHOICE, min_size=30, max_size=30))
def test_replay_does_what_running_the_drafts_does(
    seed: int, choices: list[tuple[int | None, int, float, bool]]
) -> None:
    trace = make_trace(seed)
    decoder, _, _ = make_decoder(trace)
    reference = StepwiseDecoder(trace)
    assert decoder.begin(make_request(trace), 0, ()).token == trace.output_ids[0]
    for draft, gamma, threshold, forget in choices:
        if reference.ended:
            break
        room = len(trace.output_ids) - (len(reference.context) - reference.prompt)
        gamma = max(g for g in (0, *GAMMAS) if g <= min(gamma, room - 1))
        draft = draft if gamma else None
        if draft is not None:
            if forget:
                decoder.forget_draft(draft)
                reference.caches.pop(draft, None)
            behind = len(reference.context) - 1 - len(reference.caches.get(draft, []))
            assert decoder.catch_up_tokens(draft) == behind
        got, wanted = decoder.round(draft, None, gamma, threshold), reference.round(draft, gamma, threshold)
        assert got._replace(confidence=0.0) == wanted._replace(confidence=0.0)
        assert got.confidence == pytest.approx(wanted.confidence, nan_ok=True)
        cut = len(trace.output_ids) == len(reference.context) - reference.prompt
        assert len(got.tokens) == got.accepted + 1 or (cut and len(got.tokens) <= got.accepted + 1)
    assert decoder.stored_tokens() == tuple(reference.context[:-1])


def test_a_round_costs_what_the_profile_says() -> None:
    trace = next(t for t in map(make_trace, range(41)) if 7 in np.diff(t.drafts[0].start)[1:2])
    decoder, clock, _ = make_decoder(trace)
    prompt = len(trace.prompt_ids)
    decoder.begin(make_request(trace), 0, ())
    assert clock.now_s() == pytest.approx(prompt * 0.001)
    before = clock.now_s()
    done = decoder.round(0, None, 4, 0.0)
    draft_s = (0.01 + prompt * 0.001) + (done.steps - 1) * 0.01
    assert (done.steps, done.drafted, done.catch_up_tokens) == (4, 4, prompt)
    assert clock.now_s() - before == pytest.approx(draft_s + 0.14)
    before = clock.now_s()
    assert decoder.round(None, None, 0, 0.0).tokens == (trace.output_ids[1 + done.accepted + 1],)
    assert clock.now_s() - before == pytest.approx(0.1)
    before = clock.now_s()
    decoder.store(0, len(decoder.stored_tokens()), len(decoder.stored_tokens()))
    assert clock.now_s() - before == pytest.approx(1e-5 * len(decoder.stored_tokens()))


def test_a_reused_prefix_is_restored_not_prefilled() -> None:
    trace = next(t for t in map(make_trace, range(41)) if len(t.prompt_ids) > 6)
    decoder, clock, _ = make_decoder(trace)
    prefill = decoder.begin(make_request(trace), 5, ())
    prompt = len(trace.prompt_ids)
    assert (prefill.prefill_tokens, prefill.reused_tokens) == (prompt - 5, 5)
    assert clock.now_s() == pytest.approx(5e-5 + (prompt - 5) * 0.001)
    with pytest.raises(ValueError, match=f"can reuse 0 to {prompt - 1} tokens, got {prompt}"):
        decoder.begin(make_request(trace), prompt, ())


def test_decoding_is_slower_beside_a_load() -> None:
    trace = next(t for t in map(make_trace, range(41)) if len(t.output_ids) > 4)
    costs = CostModel(replace(make_profile(), decode_slowdown=2.0), NAMES)
    clock = VirtualClock()
    loader = VirtualLoader(costs, clock)
    decoder = ReplayDecoder(TraceBank(make_traces([trace]), make_specs(), costs), loader)
    decoder.begin(make_request(trace), 0, ())
    before = clock.now_s()
    loader.start(0)
    decoder.round(None, None, 0, 0.0)
    assert clock.now_s() - before == pytest.approx(0.2)


@pytest.mark.parametrize("seed", range(6))
def test_the_draft_without_weights_runs_for_real(seed: int) -> None:
    trace = make_trace(seed)
    decoder, clock, _ = make_decoder(trace)
    lookup = LookupDrafter()
    for _ in range(2):  # the second time it remembers the first
        decoder.begin(make_request(trace), 0, ())
        lookup.begin()
        tokens = [*trace.prompt_ids, trace.output_ids[0]]
        while (room := len(trace.prompt_ids) + len(trace.output_ids) - len(tokens)) > 1:
            assert decoder.lookup_confidence(2) == lookup.confidence(tokens)
            assert math.isnan(decoder.lookup_confidence(0))
            proposal = lookup.propose(tokens, len(trace.prompt_ids), min(4, room - 1), 0.2, {EOS})
            before = clock.now_s()
            done = decoder.round(2, None, 4, 0.2)
            assert clock.now_s() - before == pytest.approx(0.0001 + 0.1 + 0.01 * len(proposal.tokens))
            assert (done.drafted, done.steps, done.catch_up_tokens) == (len(proposal.tokens), 0, 0)
            tokens.extend(done.tokens)
            lookup.sync(tokens)
            assert tokens[len(trace.prompt_ids) :] == list(trace.output_ids[: len(tokens) - len(trace.prompt_ids)])
            assert len(done.tokens) == min(done.accepted + 1, room)
    assert done.drafted > 0 or len(trace.output_ids) < 4


def test_a_prediction_is_the_topic_predictors() -> None:
    trace = next(t for t in map(make_trace, range(41)) if len(t.output_ids) > 12)
    scores = np.random.default_rng(0).random((1200, 3)).astype(np.float32)
    topic = TopicPredictor(scores, np.zeros(3, np.float32), 8, NAMES, np.zeros_like(scores))
    decoder, _, _ = make_decoder(trace, topic=topic)
    np.testing.assert_allclose(decoder.predicted(), [draft.expected for draft in make_specs()])
    decoder.begin(make_request(trace), 0, ())
    for _ in range(5):
        tokens = decoder.round(None, None, 0, 0.0).tokens
        context = (*decoder.stored_tokens(), *tokens)
        np.testing.assert_allclose(decoder.predicted(), topic.predict(context), atol=1e-6)
    with pytest.raises(UserError, match="expected a topic predictor of the drafts code, math, lookup, got one of a"):
        make_decoder(trace, topic=replace(topic, drafts=("a",)))


def test_a_request_without_a_trace_is_refused() -> None:
    trace = make_trace(0)
    decoder, _, _ = make_decoder(trace)
    with pytest.raises(ValueError, match="expected a recorded prompt"):
        decoder.begin(Request("x", (1, 2), 3), 0, ())
    with pytest.raises(ValueError, match="were recorded, got max_new_tokens 99"):
        decoder.begin(Request("x", trace.prompt_ids, 99), 0, ())
    with pytest.raises(ValueError, match=r"call begin\(\) first"):
        decoder.round(None, None, 0, 0.0)


def test_an_answer_can_be_cut_shorter_than_it_was_recorded() -> None:
    trace = next(t for t in map(make_trace, range(41)) if len(t.output_ids) > 6)
    decoder, _, _ = make_decoder(trace)
    decoder.begin(make_request(trace, 3), 0, ())
    tokens = decoder.round(0, None, 1, 0.0).tokens
    if len(tokens) == 1:
        tokens += decoder.round(None, None, 0, 0.0).tokens
    assert tokens == trace.output_ids[1:3]
    with pytest.raises(ValueError, match=r"at its end \(3 tokens\)"):
        decoder.round(None, None, 0, 0.0)
