"""Every stop rule, in replay: as the real models stop, and as the rule is written."""

from __future__ import annotations

import random

import pytest

from envs.replay.bank import TraceBank
from envs.replay.clock import VirtualClock
from envs.replay.decoder import ReplayDecoder
from envs.replay.loader import VirtualLoader
from envs.trace_code import decode, encode
from envs.traces import DraftRef, TraceSet
from runtime.core import GAMMAS, STOP_LEVELS, Decision, Phase, Request, StopRule
from runtime.decoding.stop_rule import Confidence, guess_score
from tests import tiny
from tests.factories import make_costs, make_specs, make_world
from tests.replay.scripted import EOS, guess, make_trace, make_traces
from tests.replay.test_parity import EOS as TINY_EOS
from tests.replay.test_parity import NAMES
from tests.replay.test_parity import make_trace as tiny_trace


@pytest.mark.parametrize("rule", list(StopRule))
@pytest.mark.parametrize("seed", range(2))
def test_replay_stops_where_the_real_models_stop(rule: StopRule, seed: int) -> None:
    rng = random.Random(seed)
    trace = tiny_trace(tuple(tiny.PROMPT[seed:]))
    refs = tuple(DraftRef(kind, "") for kind in tiny.KINDS)
    costs = make_costs(NAMES)
    bank = TraceBank(TraceSet("fingerprint", refs, frozenset({TINY_EOS}), (trace,)), tiny.SPECS, costs)
    replay, live = ReplayDecoder(bank, VirtualLoader(costs, VirtualClock())), tiny.decoder()
    request = tiny.request(40, eos=(TINY_EOS,), prompt=trace.prompt_ids)
    assert replay.begin(request, 0, ()) == live.begin(request, 0, ())
    stopped = 0
    while not live.ended():
        draft, gamma, threshold = rng.randrange(4), rng.randint(1, 8), rng.choice((*STOP_LEVELS, 0.1, 0.05))
        payload = tiny.drafts()[draft]
        got, wanted = (decoder.round(draft, payload, gamma, threshold, rule) for decoder in (replay, live))
        assert got._replace(confidence=0.0) == wanted._replace(confidence=0.0, guard_forwards=0)
        assert got.confidence == pytest.approx(wanted.confidence, abs=1e-3, nan_ok=True)
        stopped += 0 < threshold and got.drafted < gamma
    assert stopped > 0 and replay.ended()


@pytest.mark.parametrize("rule", list(StopRule))
def test_a_round_is_what_asking_guess_by_guess_gives(rule: StopRule) -> None:
    seen = set()
    for seed in range(40):
        trace = make_trace(seed)
        costs = make_costs()
        bank = TraceBank(make_traces([trace]), make_specs(), costs)
        decoder = ReplayDecoder(bank, VirtualLoader(costs, VirtualClock()))
        most = len(trace.output_ids)
        decoder.begin(Request("r", trace.prompt_ids, most, frozenset({EOS})), 0, ())
        at = 1
        while not decoder.ended():
            threshold, gamma = STOP_LEVELS[(seed + at) % 4], GAMMAS[-1]
            tokens, sent, sure = [*trace.prompt_ids, *trace.output_ids[:at]], 0, Confidence(rule, threshold)
            while sent < min(gamma, most - at - 1):
                token, top = guess(0, tokens)
                sent += 1
                tokens.append(token)
                if not sure.suffices(guess_score(rule, float(decode(encode(top))), (1.0, 0.0))) or token == EOS:
                    break
            done = decoder.round(0, None, gamma, threshold, rule)
            assert (done.drafted, done.steps) == (sent, sent)
            seen.add(sent)
            at += len(done.tokens)
    assert len(seen) > 5


def test_a_decision_carries_its_rule_to_the_decoder() -> None:
    drafted = {}
    for rule in StopRule:
        session = make_world().session()
        session.start(item.request for item in make_world().streams(0, 1)[0])
        drafted[rule] = 0
        while session.phase is not Phase.COMPLETE:
            done = session.advance(Decision(draft=0, gamma=8, stop=2, wait=True, rule=rule)).round
            drafted[rule] += done.drafted if done is not None else 0
    assert drafted[StopRule.REACH] < drafted[StopRule.TOKEN]  # multiplied, and not
    assert len(set(drafted.values())) == len(StopRule)
