"""How sure a draft must be, by every rule: scores, and the drafters that ask for them."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from runtime.core import STOP_LEVELS, StopRule
from runtime.decoding.drafters.base import calibrated
from runtime.decoding.drafters.lookup import CONFIDENCE, FULL_MATCH, LookupDrafter
from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.stop_rule import ENTROPY_SCALE, SPREAD, Confidence, entropy, guess_score
from tests import tiny

CALIBRATION = (0.7, -1.2)


@pytest.mark.parametrize("top", [0.001, 0.02, 0.2, 0.5, 0.9, 0.999])
def test_entropy_is_that_of_the_rest_spread_evenly(top: float) -> None:
    others = max(SPREAD, math.ceil((1 - top) / top))
    distribution = torch.tensor([top] + [(1 - top) / others] * others, dtype=torch.float64)
    wanted = float(torch.distributions.Categorical(distribution).entropy())  # type: ignore[no-untyped-call]
    assert entropy(top) == pytest.approx(wanted, rel=1e-6)


def test_surer_guesses_score_higher_by_every_rule() -> None:
    tops = [0.0, 1e-4, 0.01, 1 / (SPREAD + 1), 0.1, 0.3, 0.6, 0.9, 0.99, 1.0]
    for rule in StopRule:
        scores = [guess_score(rule, top, CALIBRATION) for top in tops]
        assert scores == sorted(scores) and 0.0 <= scores[0] < 0.1 and 0.9 < scores[-1] <= 1.0
    assert guess_score(StopRule.REACH, 0.6, CALIBRATION) == calibrated(0.6, CALIBRATION)
    assert guess_score(StopRule.TOKEN, 0.6, CALIBRATION) == 0.6
    assert guess_score(StopRule.ENTROPY, 0.6, CALIBRATION) == 1.0 - math.sqrt(ENTROPY_SCALE * entropy(0.6))


def test_only_reach_multiplies() -> None:
    for rule in StopRule:
        sure = Confidence(rule, 0.4)
        assert [sure.suffices(score) for score in (0.7, 0.7, 0.7)] == [True, True, rule is not StopRule.REACH]
        never = Confidence(rule, 0.0)
        assert all(never.suffices(0.0) for _ in range(8))


@cache
def raw_tops(kind: str, gamma: int) -> list[float]:
    """Raw top-1 probabilities of a draft that runs on by itself, each by a forward of everything."""
    loaded, tokens, tops = tiny.draft(kind), list(tiny.PROMPT), []
    embed = tiny.target().embed
    for _ in range(gamma):
        with torch.inference_mode():
            row = loaded.net.head(loaded.net.hidden(embed(tokens), DynamicCache())[:, -1:])[0, 0].float().softmax(-1)
        tops.append(float(row.max()))
        tokens.append(loaded.vocab[int(row.argmax())])
    return tops


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("rule", list(StopRule))
def test_a_draft_model_stops_where_the_rule_says(kind: str, rule: StopRule) -> None:
    tops = raw_tops(kind, 8)
    scores = [guess_score(rule, top, CALIBRATION) for top in tops]
    levels = list(itertools.accumulate(scores, lambda a, b: a * b)) if rule is StopRule.REACH else scores
    thresholds = {0.0, 2.0, *(level * (1 + shift) for level in levels for shift in (-1e-3, 1e-3))}
    drafter = ModelDrafter(tiny.draft(kind), tiny.target().embed, tiny.VOCAB, CALIBRATION)
    for threshold in thresholds:
        failing = next((k for k, level in enumerate(levels) if level < threshold), None)
        sent = 8 if failing is None else failing + 1
        drafter.begin()
        proposal = drafter.propose(tiny.PROMPT, len(tiny.PROMPT), 8, threshold, (), rule=rule)
        assert (len(proposal.tokens), proposal.steps) == (sent, sent)
        assert proposal.confidence == pytest.approx(calibrated(tops[0], CALIBRATION), rel=1e-4)


@pytest.mark.parametrize("rule", list(StopRule))
def test_the_lookup_stops_where_the_rule_says(rule: StopRule) -> None:
    text = [*range(10, 30), 3, *range(10, 13)]  # a match of three tokens
    scores = [guess_score(rule, CONFIDENCE[min(3 + k, FULL_MATCH)], CALIBRATION) for k in range(8)]
    levels = list(itertools.accumulate(scores, lambda a, b: a * b)) if rule is StopRule.REACH else scores
    for threshold in (0.0, 0.1, 0.3, 0.45, 0.6, 0.9):
        failing = next((k for k, level in enumerate(levels) if level < threshold), None)
        sent = 8 if failing is None else failing + 1
        proposal = LookupDrafter(CALIBRATION).propose(text, 0, 8, threshold, (), rule=rule)
        assert proposal.tokens == tuple(range(13, 13 + sent))
        assert proposal.confidence == calibrated(CONFIDENCE[3], CALIBRATION)


@pytest.mark.parametrize("rule", list(StopRule))
def test_the_text_is_the_targets_own_by_every_rule(rule: StopRule) -> None:
    payloads: tuple[Any, ...] = tiny.drafts()
    live = tiny.decoder()
    for draft in range(len(tiny.SPECS)):
        text = [live.begin(tiny.request(20), 0, ()).token]
        while not live.ended():
            text.extend(live.round(draft, payloads[draft], 5, STOP_LEVELS[1], rule).tokens)
        assert tuple(text) == tiny.plain_text(20)
