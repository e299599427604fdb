"""The stacked baseline: the draft, the length, the stop, reuse and retention, each by its own rule."""

from __future__ import annotations

import pytest

from agents.serving import serve
from runtime.control.rakv_asd import RakvAsdController
from runtime.control.stacked import StackedController
from runtime.core import Decision, Phase, Victim
from runtime.profile import CostModel
from tests.control.observing import N, see
from tests.factories import NAMES, make_costs, make_profile, make_world

STALE = (1024.0, 1024.0, 1024.0)


Columns = dict[str, tuple[float, ...]]


def decide(gamma: int | None = None, stop: int = 1, plus: bool = False, **columns: tuple[float, ...]) -> Decision:
    """The decision of a fresh controller for guesses that cost a tenth of a plain step."""
    return decide_on(columns, gamma, stop, plus)


def decide_on(columns: Columns, gamma: int | None = None, stop: int = 1, plus: bool = False) -> Decision:
    """The same of columns in a dictionary."""
    given = {"step_ratio": (0.1, 0.1, 0.0), "staleness": STALE, **columns}
    return StackedController(N, make_costs(), gamma, stop, plus).decide(see(drafts=given))


def test_the_draft_predicted_best_guesses_as_long_as_its_costs_say() -> None:
    lengths = []
    for predicted in (0.1, 0.3, 0.6, 0.8, 0.98):
        decision = decide(predicted=(0.05, predicted, 0.0))
        assert decision.draft == (None if decision.gamma == 0 else 1)
        lengths.append(decision.gamma)
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] == 8 and len(set(lengths)) >= 4
    assert decide(predicted=(0.9, 0.5, 0.0)).draft == 0


@pytest.mark.parametrize("plus", [False, True])
def test_a_fixed_length_is_a_cap(plus: bool) -> None:
    decision = decide(4, 2, plus, predicted=(0.0, 0.6, 0.0))
    assert (decision.draft, decision.gamma, decision.stop) == (1, 4, 2)


def test_only_plus_lets_the_costs_forbid_a_fixed_length() -> None:
    assert decide(4, 2, False, predicted=(0.0, 0.1, 0.0)).draft == 1
    assert decide(4, 2, True, predicted=(0.0, 0.1, 0.0)).draft is None


def test_absorbing_the_text_is_worth_it_only_if_room_is_left() -> None:
    costs = {"step_ratio": (0.1, 0.1, 0.0), "staleness": STALE, "predicted": (0.0, 0.6, 0.0)}
    controller = StackedController(N, make_costs(), gamma=None)
    for room, draft in ((100.0, 1), (5.0, None)):
        seen = see(drafts={**costs, "catch_up_cost": (3.0, 3.0, 0.0)}, room_tokens=room)
        assert controller.decide(seen).draft == draft
        acceptance = {**costs, "acceptance": (0.0, 0.6, 0.0), "catch_up_cost": (3.0, 3.0, 0.0)}
        rakv = RakvAsdController(N, 1, make_costs()).decide(see(drafts=acceptance, room_tokens=room))
        assert rakv.draft == draft


def test_fresh_evidence_corrects_the_prediction() -> None:
    fresh: Columns = {"predicted": (0.0, 0.5, 0.0), "staleness": (0.0, 0.0, 1024.0)}
    lengths = [decide_on({**fresh, "acceptance": (0.0, now, 0.0)}).gamma for now in (0.0, 0.5, 1.0)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
    even = {**fresh, "predicted": (0.5, 0.5, 0.0)}
    assert decide_on({**even, "acceptance": (0.2, 0.8, 0.0)}, plus=True).draft == 1
    assert decide_on({**even, "acceptance": (0.8, 0.2, 0.0)}, plus=True).draft == 0


def test_only_plus_asks_what_the_last_token_says() -> None:
    even: Columns = {"predicted": (0.5, 0.49, 0.0)}
    for plus, draft in ((False, 0), (True, 1)):
        assert decide_on({**even, "next_shift": (0.0, 0.2, 0.0)}, plus=plus).draft == draft
        assert decide_on({**even, "next_shift": (-0.5, -0.5, 0.0)}, plus=plus).draft == (None if plus else 0)


def test_plus_takes_a_lookup_where_it_is_sure_and_never_stops_it() -> None:
    """The look-up is predicted best; whether it has anything to say now is another matter."""
    predicted = (0.5, 0.4, 0.9)
    decision = decide(4, 2, True, predicted=predicted, confidence=(0.0, 0.0, 0.9))
    assert (decision.draft, decision.gamma, decision.stop) == (2, 8, 0)
    assert decide(plus=True, predicted=predicted, confidence=(0.0, 0.0, 0.0)).draft == 0
    assert decide(4, 2, False, predicted=predicted, confidence=(0.0, 0.0, 0.9)).draft == 2
    assert decide(predicted=predicted, confidence=(0.0, 0.0, 0.0)).draft is None


@pytest.mark.parametrize("plus", [False, True])
def test_the_best_predicted_draft_is_fetched_and_nothing_waits(plus: bool) -> None:
    decision = decide(plus=plus, resident=(0.0, 1.0, 1.0), predicted=(0.7, 0.5, 0.0))
    assert (decision.draft, decision.prefetch, decision.wait) == (1, 0, False)
    assert decide(plus=plus, resident=(0.0, 1.0, 1.0), predicted=(0.51, 0.5, 0.0)).prefetch is None


def test_only_plus_fetches_a_draft_beside_a_better_lookup() -> None:
    for plus, wanted in ((False, None), (True, 0)):
        assert decide(plus=plus, resident=(0.0, 0.0, 1.0), predicted=(0.1, 0.05, 0.9)).prefetch == wanted


def test_a_load_takes_the_room_of_what_is_cheaper_to_bring_back() -> None:
    controller = StackedController(N, CostModel(make_profile(load_s=0.1), NAMES))
    away = {"resident": (0.0, 1.0, 1.0), "predicted": (0.7, 0.5, 0.0)}
    for usable, victim in ((1.0, Victim.DRAFTS), (0.0, Victim.KV)):
        for _ in range(30):
            controller.decide(see(Phase.ADMIT, usable_share=usable))
        decision = controller.decide(see(drafts=away, context_tokens=400.0))
        assert (decision.prefetch, decision.victim) == (0, victim)


@pytest.mark.parametrize(("usable", "reuses"), [(50.0, True), (1.0, False)])
def test_a_stored_prefix_is_reused_if_it_pays(usable: float, reuses: bool) -> None:
    seen = see(Phase.ADMIT, prompt_tokens=100.0, usable_prefix_tokens=usable, usable_share=usable / 100.0)
    assert StackedController(N, make_costs()).decide(seen).kv is reuses


def test_kv_is_retained_by_its_worth() -> None:
    controller = StackedController(N, make_costs())
    size = {"size_share": (0.4, 0.4, 0.0)}
    for need, kept in ((0.3, True), (0.5, False)):
        seen = see(Phase.COMPLETE, size, context_tokens=400.0, retain_share=need)
        assert controller.decide(seen).kv is kept


def test_on_streams_it_is_legal_and_beats_plain_decoding() -> None:
    world = make_world(requests=6)
    stream = world.streams(0, 1)[0]
    for gamma, plus in ((None, False), (4, False), (None, True), (4, True)):
        result, _ = serve(StackedController(N, world.costs, gamma, 1, plus), stream, world.session(), "stacked")
        assert result.illegal == 0 and result.stall_s == 0.0 and result.speculative_rounds > 0
        assert result.seconds < sum(0.1 * len(item.trace.output_ids) for item in stream)
