"""Replay and the real models take the same decisions in the same way: equal rounds, equal catch-up, equal counters."""

from __future__ import annotations

import random

import pytest

from envs.guesses import follow
from envs.replay.bank import TraceBank
from envs.replay.clock import VirtualClock
from envs.replay.decoder import ReplayDecoder
from envs.replay.loader import VirtualLoader
from envs.traces import DraftRef, Trace, TraceSet
from runtime.core import GAMMAS, STOP_LEVELS
from tests import tiny
from tests.factories import make_costs

NAMES = (*tiny.KINDS, "lookup")
EOS = tiny.plain_text(40)[30]
"""A token of the text, so that texts end in the middle of rounds."""


def make_trace(prompt: tuple[int, ...]) -> Trace:
    output = tiny.plain_text(40, prompt)
    if EOS in output:
        output = output[: output.index(EOS) + 1]
    embed = tiny.network().get_input_embeddings()
    nets = [payload.net for payload in tiny.drafts() if payload is not None]
    drafts = tuple(follow(net, embed, prompt, output, frozenset({EOS}), floor=0.0) for net in nets)
    return Trace("p", "code", "train", "single", "p", 0, prompt, output, drafts)


@pytest.mark.parametrize("seed", range(4))
def test_replay_equals_the_real_models(seed: int) -> None:
    rng = random.Random(seed)
    traces = [make_trace(tuple(tiny.PROMPT[at:])) for at in (0, seed + 1)]
    refs = tuple(DraftRef(kind, "") for kind in tiny.KINDS)
    costs = make_costs(NAMES)
    bank = TraceBank(TraceSet("fingerprint", refs, frozenset({EOS}), tuple(traces)), tiny.SPECS, costs)
    replay, live = ReplayDecoder(bank, VirtualLoader(costs, VirtualClock())), tiny.decoder()
    for trace in traces:
        request = tiny.request(40, eos=(EOS,), prompt=trace.prompt_ids)
        assert replay.begin(request, 0, ()) == live.begin(request, 0, ())
        committed = [trace.output_ids[0]]
        while committed[-1] != EOS and len(committed) < 40:
            for index in range(len(NAMES)):
                assert replay.catch_up_tokens(index) == live.catch_up_tokens(index)
            draft = rng.choice([None, 0, 1, 2, tiny.LOOKUP])
            gamma = rng.choice(GAMMAS) if draft is not None else 0
            threshold = rng.choice(STOP_LEVELS)
            if draft is not None and rng.random() < 0.1:
                replay.forget_draft(draft)
                live.forget_draft(draft)
            payload = None if draft is None else tiny.drafts()[draft]
            got = replay.round(draft, payload, gamma, threshold)
            wanted = live.round(draft, payload, gamma, threshold)
            assert got._replace(confidence=0.0) == wanted._replace(confidence=0.0, guard_forwards=0)
            assert got.confidence == pytest.approx(wanted.confidence, abs=1e-3, nan_ok=True)
            assert replay.lookup_confidence(tiny.LOOKUP) == live.lookup_confidence(tiny.LOOKUP)
            assert replay.stored_tokens() == live.stored_tokens()
            committed.extend(got.tokens)
        assert tuple(committed) == trace.output_ids
