from __future__ import annotations

from collections import Counter

import pytest

from agents.hedge import HedgeController
from runtime.core import Decision, Outcome, Phase, Round
from tests.agents.made_up import four_world, observe, run, seconds


def round_of(
    draft: int | None,
    tokens: int = 1,
    drafted: int = 0,
    accepted: int = 0,
    scored: tuple[int, int] = (0, 0),
    steps: int = 0,
    confidence: float = float("nan"),
) -> Outcome:
    done = Round(tuple(range(tokens)), drafted, accepted, steps, scored=scored, confidence=confidence)
    decision = Decision(draft, 0 if draft is None else 4)
    return Outcome(Phase.DECODE, decision, 1.0, 1.0, round=done, tokens=done.tokens)


def begun(acceptance: tuple[float, ...] = (0.5, 0.5), interval: int = 1000) -> HedgeController:
    """A hedge that has seen a round and needs to score nobody soon."""
    hedge = HedgeController(len(acceptance), 4, memory=0.9, interval=interval)
    hedge.decide(observe(len(acceptance), acceptance=acceptance))
    hedge._unscored = [0] * len(acceptance)
    return hedge


def test_finds_the_right_draft_of_its_set() -> None:
    for domain, draft in (("math", 1), ("story", 2)):
        _, rounds = run(HedgeController(4, 4, interval=64), four_world(domain=domain))
        late = Counter(outcome.decision.draft for outcome in rounds[len(rounds) // 2 :])
        assert late.most_common(1)[0][0] == draft


def test_never_waits_and_never_gives_up_its_set() -> None:
    session, rounds = run(HedgeController(4, 4), four_world())
    counters = session.counters
    assert (counters.loads, counters.evictions, counters.illegal, counters.stall_s) == (2, 0, 0, 0.0)
    assert not any(outcome.decision.wait for outcome in rounds)


def test_scores_every_resident_draft_in_turn() -> None:
    _, rounds = run(HedgeController(4, 4, interval=40), four_world(domain="math"))
    since, rare = 0, []
    for outcome in rounds[20:]:
        if outcome.decision.draft == 2:
            rare.append(since)
            since = 0
        since += outcome.committed
    assert len(rare) > 5
    assert max(rare) < 60  # a round of the other draft, or a look-up's, may come between
    assert sum(outcome.decision.draft == 1 for outcome in rounds) > 3 * len(rare)
    scored = [outcome.round.scored[1] for outcome in rounds if outcome.decision.draft == 2 and outcome.round]
    assert max(scored) > 20  # one round tells of all the text that it had not seen


def test_an_unchosen_draft_is_weighed_by_what_its_catch_up_says() -> None:
    hedge = begun()
    before = hedge.log_weights
    hedge.learn(round_of(1, tokens=3, drafted=4, accepted=2, scored=(6, 7)))
    right, positions = 2 + 6, 2 + 1 + 7
    horizon = (1 - 0.9**positions) / (1 - 0.9)
    assert hedge.log_weights[1] - before[1] == pytest.approx(horizon * (right / positions - 0.5))
    assert hedge.log_weights[0] == before[0]
    assert hedge.decide(observe(2)).draft == 1


def test_follows_a_shift() -> None:
    hedge = begun((0.6, 0.5))
    for _ in range(20):
        hedge.learn(round_of(0, tokens=5, drafted=4, accepted=4))
    assert hedge.decide(observe(2)).draft == 0
    for _ in range(20):
        hedge.learn(round_of(0, drafted=4))
    assert hedge.decide(observe(2)).draft == 1


def test_what_is_old_counts_less() -> None:
    hedge = begun()
    hedge.learn(round_of(0, tokens=5, drafted=4, accepted=4))
    gain = hedge.log_weights[0] - hedge.log_weights[1]
    hedge.learn(round_of(None, tokens=3))
    assert hedge.log_weights[0] - hedge.log_weights[1] == pytest.approx(gain * 0.9**3)


def test_begins_with_the_best_draft_of_training_and_every_stream_anew() -> None:
    hedge = begun((0.3, 0.6))
    assert hedge.decide(observe(2)).draft == 1
    for _ in range(20):
        hedge.learn(round_of(1, drafted=4))
    assert hedge.decide(observe(2)).draft == 0
    hedge.begin_stream()
    assert hedge.decide(observe(2, acceptance=[0.3, 0.6])).draft == 1
    assert hedge._gain == [0.0, 0.0]


def test_a_guess_behind_which_the_text_was_cut_is_not_wrong() -> None:
    hedge = begun()
    hedge.learn(round_of(0, tokens=2, drafted=4, accepted=2))
    assert hedge._gain[0] == pytest.approx((1 - 0.9**2) / 0.1 * 0.5)


def test_scores_nobody_in_place_of_a_look_up() -> None:
    hedge = HedgeController(2, 4, interval=10)

    def draft(confidence: float) -> int | None:
        seen = observe(2, weightless=[0.0, 1.0], confidence=[0.0, confidence], acceptance=[0.3, 0.6])
        return hedge.decide(seen).draft

    assert draft(0.9) == 1
    assert draft(0.0) == 0


def test_the_longest_unscored_comes_first() -> None:
    hedge = begun((0.9, 0.5, 0.4), interval=10)
    hedge._unscored = [0, 10, 12]
    assert hedge.decide(observe(3)).draft == 2
    hedge._unscored = [0, 9, 9]
    assert hedge.decide(observe(3)).draft == 0


def test_decodes_plainly_while_nobody_can_guess() -> None:
    assert HedgeController(2, 4).decide(observe(2, resident=[0.0, 0.0])).draft is None


def test_serves_a_stream_alike_twice() -> None:
    world = four_world()
    assert seconds(HedgeController(4, 4), world) == seconds(HedgeController(4, 4), world)


def test_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match="at least one draft, got 0"):
        HedgeController(0, 1)
    with pytest.raises(ValueError, match="memory: expected a factor above 0 and below 1, got 1"):
        HedgeController(2, 1, memory=1.0)
    with pytest.raises(ValueError, match="interval: expected at least 1 token, got 0"):
        HedgeController(2, 1, interval=0)
