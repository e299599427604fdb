"""The counters: they can be read, they add up, and a decoder that reports nonsense is found out."""

from __future__ import annotations

import pytest

from runtime.core import STOP_LEVELS, Counters, Decision, Outcome, Phase, Round, Victim
from runtime.counting import Tally, count_tokens
from runtime.state import EVIDENCE_DECAY
from tests.session.tiny_session import guess, open_tiny, serve, text
from tests.tiny import KINDS, LOOKUP, plain_text, request

ALWAYS, NEVER, SOMETIMES = range(3)


@pytest.mark.parametrize("draft", [*range(len(KINDS)), LOOKUP])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_counters_can_be_found_and_add_up(draft: int, gamma: int) -> None:
    """vllm #13990, #9539: what was drafted, accepted and committed could not be read, or did not add up."""
    session, _ = open_tiny()
    end = plain_text()[17]
    served = serve(session, [request(25), request(40, (end,)), request(1)], guess(draft, gamma))
    total = session.counters
    rounds = [o.round for outcomes in served for o in outcomes if o.round is not None]
    assert total.rounds == len(rounds)
    assert total.drafted == sum(one.drafted for one in rounds)
    assert total.accepted == sum(one.accepted for one in rounds)
    assert total.admitted == 3
    assert total.committed == sum(map(len, map(text, served))) == total.admitted + total.accepted + total.corrections
    assert total.rounds - 2 <= total.corrections <= total.rounds  # two texts may end with an accepted guess
    assert total.acceptance_rate == (total.accepted / total.drafted if total.drafted else 0.0)
    assert total.acceptance_rate == {ALWAYS: 1.0, NEVER: 0.0}.get(draft, total.acceptance_rate)


def test_acceptance_is_not_the_goal() -> None:
    """llama.cpp #3919: a gate raises the share of accepted guesses and still cost rounds, which are what is paid."""
    totals = []
    for stop in (0, len(STOP_LEVELS) - 1):
        session, _ = open_tiny()
        serve(session, [request(60)], lambda _, stop=stop: Decision(draft=SOMETIMES, gamma=8, stop=stop, wait=True))  # type: ignore[misc]
        totals.append(session.counters)
    free, gated = totals
    assert free.committed == gated.committed == 60
    assert gated.drafted < free.drafted and gated.rounds >= free.rounds


def test_counts_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = open_tiny()
    session.start([request()])
    session.advance(Decision())
    round_ = session.decoder.round
    monkeypatch.setattr(session.decoder, "round", lambda *some: round_(*some)._replace(accepted=3))
    with pytest.raises(RuntimeError, match="0 drafted, 3 accepted and 1 committed"):
        session.advance(Decision())
    assert session.phase is Phase.DECODE


def test_a_text_of_another_length_than_its_steps_is_refused() -> None:
    outcome = Outcome(Phase.ADMIT, Decision(), 0.1, 0.1, tokens=(5,))
    with pytest.raises(RuntimeError, match="text has 2 tokens, its steps committed 1"):
        count_tokens(Counters(), Tally(), outcome, generated=2, ended=False)


def test_a_text_cut_by_a_stop_string_is_no_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = open_tiny()
    session.start([request()])
    session.advance(Decision())
    assert session.memory.load_now(SOMETIMES, Victim.DRAFTS, 0.0)
    monkeypatch.setattr(session.decoder, "round", lambda *some: Round((7, 8), drafted=4, accepted=2))
    monkeypatch.setattr(session.decoder, "ended", lambda: True)
    before = float(session._evidence.acceptance[SOMETIMES])
    session.advance(Decision(draft=SOMETIMES, gamma=4))
    assert session._evidence.acceptance[SOMETIMES] == pytest.approx(1.0 - (1.0 - before) * EVIDENCE_DECAY**2)
