"""From logits to tokens: the filters of transformers, one request's random numbers, and sampling in the decoder."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from runtime.core import GREEDY, Request, Sampling
from runtime.decoding.drafters.base import Proposal
from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.live import LiveDecoder
from runtime.decoding.sampling import Sampler, distribution
from runtime.engine.draft_net import build_draft_net
from runtime.engine.loaded_draft import LoadedDraft
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from tests.decoding.pearson import chi_square, p_value
from tests.decoding.tables import reference
from tests.tiny import (
    LOOKUP,
    PROMPT,
    VOCAB,
    decoder,
    draft,
    draft_parts,
    drafts,
    network,
    plain_text,
    target,
    tiny_network,
)

ALWAYS, NEVER, SOMETIMES = range(3)
SETTINGS = tuple(
    Sampling(repetition_penalty=penalty, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for penalty, temperature, top_k, top_p, min_p in itertools.product(
        (1.0, 1.3, 0.8), (0.3, 1.0, 2.0), (0, 7, 10_000), (1.0, 0.9, 0.2), (0.0, 0.1)
    )
)


def text_of(
    sampling: Sampling, index: int | None = None, gamma: int = 0, tokens: int = 24, live: LiveDecoder | None = None
) -> tuple[int, ...]:
    """A text of the tiny target, with one draft or none."""
    live = live or decoder()
    text = [live.begin(Request("r", PROMPT, tokens, sampling=sampling), 0, ()).token]
    while not live.ended():
        text.extend(live.round(index, None if index is None else drafts()[index], gamma, 0.0).tokens)
    return tuple(text)


# -- filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "spread"), [(50, 2.0), (5000, 3.0), (5000, 0.1)])  # the last needs the full sort
def test_filters_are_those_of_transformers(size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(size)
    for sampling in SETTINGS:
        logits = torch.randn(size, generator=generator) * spread
        seen = torch.randint(size, (20,), generator=generator).tolist()
        p = distribution(logits, seen, sampling, sampling.temperature)
        torch.testing.assert_close(p, reference(logits, seen, sampling, sampling.temperature), rtol=1e-4, atol=1e-7)


def test_plain_sampling_draws_from_what_transformers_generates_from() -> None:
    """``generate`` hands out its processed scores: the very distributions it drew from."""
    sampling = Sampling(repetition_penalty=1.3, temperature=0.8, top_k=20, top_p=0.9, min_p=0.02)
    arguments = {
        key: value for key, value in dataclasses.asdict(sampling).items() if key not in ("seed", "draft_temperature")
    }
    torch.manual_seed(3)
    ids = torch.tensor([PROMPT])
    out: Any = network().generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=True, output_scores=True,
        return_dict_in_generate=True, **arguments,
    )  # fmt: skip
    text, model, sampler = out.sequences[0].tolist(), target(), Sampler(sampling)
    rows = model.forward(text[:-1], "all")
    for step, scores in enumerate(out.scores):
        end = len(PROMPT) + step
        p = sampler.distribution(rows[end - 1], text[:end])
        torch.testing.assert_close(p, scores[0].softmax(-1), rtol=1e-3, atol=1e-5)


def test_no_temperature_is_too_small() -> None:
    p = distribution(torch.tensor([1.0, 3.0, 2.0]), (), GREEDY, 1e-45)
    assert p.tolist() == [0.0, 1.0, 0.0]


def test_trimmed_vocabulary_is_the_whole_one_without_the_others() -> None:
    logits, vocab = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 2, list(range(0, 40, 3))
    others = torch.full((40,), -torch.inf).index_copy(0, torch.tensor(vocab), logits[vocab])
    seen = [3, 4, 9, 9, 30]
    for sampling in SETTINGS:
        q = distribution(logits[vocab], [vocab.index(t) for t in seen if t in vocab], sampling, sampling.temperature)
        torch.testing.assert_close(q, distribution(others, seen, sampling, sampling.temperature)[vocab])


# -- draws ----------------------------------------------------------------------------------------------------------


def test_draws_are_distributed_as_the_weights() -> None:
    """A right sampler fails this once in a million choices of the seed."""
    weights = torch.tensor([0.0, 0.5, 0.0, 2.0, 0.01, 1.0, 0.0])
    sampler = Sampler(Sampling(temperature=1.0, seed=4))
    counts = Counter((sampler.draw(weights),) for _ in range(4000))
    expected = {(i,): float(w / weights.sum()) for i, w in enumerate(weights) if w > 0}
    assert p_value(*chi_square(counts, expected)) > 1e-6
    taken = sum(sampler.accepts(0.3) for _ in range(4000))
    assert p_value(*chi_square({(0,): taken, (1,): 4000 - taken}, {(0,): 0.3, (1,): 0.7})) > 1e-6
    assert all(sampler.accepts(1.0) for _ in range(1000))
    assert not any(sampler.accepts(0.0) for _ in range(1000))


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_no_draw_is_impossible(uniform: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(GREEDY)
    monkeypatch.setattr(sampler, "_uniform", lambda: uniform)
    for scale in (1e-30, 1.0, 3.0, 1e30):
        weights = torch.tensor([0.0, 1.0, 0.3, 0.0]) * scale
        assert sampler.draw(weights) == (1 if uniform == 0.0 else 2)


def test_bad_values_are_refused() -> None:
    for field, value in (
        ("repetition_penalty", 0.0), ("temperature", -0.1), ("temperature", float("nan")), ("top_k", -1),
        ("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1), ("min_p", 1.5), ("draft_temperature", -1.0),
    ):  # fmt: skip
        given: dict[str, Any] = {field: value}
        with pytest.raises(UserError, match=field):
            Sampling(**given)
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(UserError, match="seed must be a whole number of 64 bits"):
            Sampler(Sampling(seed=seed))
    for weights in ([0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]):
        with pytest.raises(UserError, match="not finite"):
            Sampler(GREEDY).draw(torch.tensor(weights))


# -- the decoder ----------------------------------------------------------------------------------------------------

WARM = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=7)


@pytest.mark.parametrize(("index", "gamma"), [(None, 0), (SOMETIMES, 4), (LOOKUP, 2)])
def test_seed_repeats_the_text(index: int | None, gamma: int) -> None:
    text = text_of(WARM, index, gamma)
    live = decoder()
    if index != LOOKUP:  # what it remembers of the first request is another draft for the second
        assert text_of(WARM, index, gamma, live=live) == text
    assert text_of(WARM, index, gamma, live=decoder()) == text
    assert text_of(dataclasses.replace(WARM, seed=8), index, gamma) != text
    fresh = dataclasses.replace(WARM, seed=None)
    assert text_of(fresh, index, gamma) != text_of(fresh, index, gamma)


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_target_as_its_own_draft_is_always_accepted(gamma: int) -> None:
    live = decoder()
    live.begin(Request("r", PROMPT, 60, sampling=WARM), 0, ())
    while not live.ended():
        done = live.round(ALWAYS, drafts()[ALWAYS], gamma, 0.0)
        assert done.accepted == done.drafted


@cache
def penalised_text(penalty: float, tokens: int = 24) -> tuple[int, ...]:
    """Greedy text by whole forwards, penalised by ``transformers``."""
    ids, processor = list(PROMPT), RepetitionPenaltyLogitsProcessor(penalty)
    with torch.no_grad():
        for _ in range(tokens):
            given = torch.tensor([ids], dtype=torch.long)
            ids.append(int(processor(given, network()(input_ids=given).logits[:, -1]).argmax()))
    return tuple(ids[len(PROMPT) :])


@pytest.mark.parametrize(("index", "gamma"), [(None, 0), (ALWAYS, 4), (SOMETIMES, 2), (NEVER, 4), (LOOKUP, 4)])
@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_no_temperature_and_hardly_any_agree(index: int | None, gamma: int, penalty: float) -> None:
    """Temperature 0 drafts as well as any other, and is the limit of small ones (ggml-org/llama.cpp #5657)."""
    expected = plain_text()[:24] if penalty == 1.0 else penalised_text(penalty)
    cold = Sampling(repetition_penalty=penalty)
    assert text_of(cold, index, gamma) == expected
    assert text_of(cold, index, gamma, live=decoder(margin=1e9)) == expected  # every position is decided again
    assert text_of(dataclasses.replace(cold, temperature=1e-4, seed=1), index, gamma) == expected
    assert text_of(dataclasses.replace(cold, draft_temperature=1.0, seed=1), index, gamma) == expected


def proposal_of(sampling: Sampling, dtype: torch.dtype = torch.float32) -> Proposal:
    """Four guesses of a draft with half the vocabulary."""
    parts, model = draft_parts("sometimes"), TransformersModel(tiny_network(dtype))
    net = build_draft_net(parts).requires_grad_(False).to(dtype)
    loaded = LoadedDraft("sometimes", net, tuple(parts.vocab.tolist()), 0)
    return ModelDrafter(loaded, model.embed, VOCAB).propose(PROMPT, len(PROMPT), 4, 0.0, (), Sampler(sampling))


def test_q_is_what_the_guess_was_drawn_from() -> None:
    """After all filters, not the draft's softmax (huggingface/transformers #47932)."""
    sampling = Sampling(temperature=0.7, top_k=3, seed=2)
    proposal = proposal_of(sampling)
    assert len(proposal.probabilities) == len(proposal.tokens) == 4
    for token, q in zip(proposal.tokens, proposal.probabilities, strict=True):
        assert q.shape == (VOCAB,)
        assert int((q > 0).sum()) == 3
        assert float(q[token]) > 0.0
        assert float(q[1::2].sum()) == 0.0  # tokens the draft does not have
        assert float(q.sum()) == pytest.approx(1.0)


def test_greedy_guesses_are_point_masses() -> None:
    """A draft that does not sample has no softmax to be accepted by (huggingface/transformers #33534)."""
    assert proposal_of(Sampling(temperature=1.0, draft_temperature=0.0)).probabilities == ()


def test_draft_temperature_is_its_own() -> None:
    """Explicit, the request's if it is not given (huggingface/transformers #40976)."""
    first = [proposal_of(Sampling(temperature=0.7, draft_temperature=t)).probabilities[0] for t in (None, 0.7, 1.5)]
    assert torch.equal(first[0], first[1])
    assert float(first[2].max()) < float(first[0].max())


def test_both_distributions_are_of_one_dtype() -> None:
    """Draws and ratios in fp32, whatever the models compute in (deepseek-ai/DeepSpec #31)."""
    proposal = proposal_of(WARM, torch.bfloat16)
    model = TransformersModel(tiny_network(torch.bfloat16))
    p = Sampler(WARM).distribution(model.forward(PROMPT, "last")[0], PROMPT)
    assert {q.dtype for q in proposal.probabilities} == {p.dtype} == {torch.float32}


def test_whether_guessing_goes_on_does_not_depend_on_the_draw() -> None:
    drafter, guesses = ModelDrafter(draft("sometimes"), target().embed, VOCAB), set[int]()
    sure = drafter.propose(PROMPT, len(PROMPT), 1, 0.0, ()).confidence
    for threshold, expected in ((0.99 * sure, 2), (1.01 * sure, 1)):
        for seed in range(30):
            drafter.begin()
            sampler = Sampler(Sampling(temperature=2.0, seed=seed))
            proposal = drafter.propose(PROMPT, len(PROMPT), 2, threshold, (), sampler)
            assert (len(proposal.tokens), proposal.steps, proposal.confidence) == (expected, expected, sure)
            guesses.add(proposal.tokens[0])
    assert len(guesses) > 3


def test_reused_prefix_needs_no_second_forward_when_sampling() -> None:
    live = decoder(margin=1e9)
    live.begin(Request("r", PROMPT, 4), 0, ())
    stored = live.target.export_kv(0, 6)
    prefill = live.begin(Request("r", PROMPT, 4, sampling=WARM), 6, [stored])
    assert (prefill.reused_tokens, prefill.prefill_tokens) == (6, len(PROMPT) - 6)
    assert prefill.token == text_of(WARM, tokens=1)[0]


def test_refused_seed_leaves_the_decoder_usable() -> None:
    live = decoder()
    with pytest.raises(UserError, match="seed"):
        live.begin(Request("r", PROMPT, 4, sampling=Sampling(temperature=1.0, seed=2**70)), 0, ())
    assert text_of(GREEDY, tokens=4, live=live) == plain_text()[:4]


def test_interrupt_leaves_committed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt("now")

    live = decoder()
    live.begin(Request("r", PROMPT, 40, sampling=WARM), 0, ())
    live.round(SOMETIMES, drafts()[SOMETIMES], 4, 0.0)
    length = live.target.length
    for name in ("draw", "accepts"):
        with monkeypatch.context() as patch:
            patch.setattr(Sampler, name, interrupt)
            with pytest.raises(KeyboardInterrupt, match="now"):
                live.round(SOMETIMES, drafts()[SOMETIMES], 4, 0.0)
        assert live.target.length == length
        assert live.catch_up_tokens(SOMETIMES) <= 1
    live.round(SOMETIMES, drafts()[SOMETIMES], 4, 0.0)
    assert live.stored_tokens()[: len(PROMPT)] == PROMPT
