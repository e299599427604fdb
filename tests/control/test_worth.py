"""Stored KV against drafts: kept while it is likely to save more than what must go for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.control.worth import HIT_LEAST, HIT_START, Worth
from runtime.core import Phase, Victim
from runtime.profile import CostModel
from tests.control.observing import see
from tests.factories import NAMES, make_costs, make_profile

SIZES = (0.4, 0.4, 0.0)


def keeps(worth: Worth, need: float, free: float = 0.0, kv: float = 0.0, tokens: int = 400) -> bool:
    return worth.retain(
        see(
            Phase.COMPLETE,
            {"size_share": SIZES},
            context_tokens=tokens,
            retain_share=need,
            free_share=free,
            kv_share=kv,
        )
    )


def test_what_was_found_stored_is_remembered_for_the_stream() -> None:
    worth = Worth(make_costs())
    for _ in range(3):
        worth.note(see(Phase.ADMIT, usable_share=1.0))
    assert worth.hit_share == pytest.approx(1.0 - 0.5 * 0.8**3)
    for _ in range(50):
        worth.note(see(Phase.ADMIT, usable_share=0.0))
    assert worth.hit_share == HIT_LEAST
    worth.begin_stream()
    assert worth.hit_share == HIT_START


def test_kv_is_kept_if_it_saves_more_than_the_drafts_that_go() -> None:
    """A prefill of 400 tokens takes 0.4 s, a load 0.25 s; half of each is expected to be needed."""
    worth = Worth(make_costs())
    assert keeps(worth, need=0.3, free=0.3) and keeps(worth, need=0.3, kv=0.3)
    assert keeps(worth, need=0.3)  # one draft goes: 0.198 s against 0.125 s and the copy
    assert not keeps(worth, need=0.5)  # two go
    assert not keeps(worth, need=0.2, tokens=200)
    worth.hit_share = HIT_LEAST
    assert keeps(worth, need=0.3, free=0.3) and not keeps(worth, need=0.3)


def test_kv_that_costs_as_much_to_copy_as_to_compute_is_dropped() -> None:
    slow = replace(make_profile(), kv_store=replace(make_profile().kv_store, seconds=(0.0, 1.0)))
    assert not keeps(Worth(CostModel(slow, NAMES)), need=0.1, free=1.0)


@pytest.mark.parametrize(("load_s", "first"), [(0.05, Victim.DRAFTS), (0.25, Victim.KV)])
def test_what_is_cheaper_to_bring_back_gives_way_to_a_load(load_s: float, first: Victim) -> None:
    """1,000 bytes of KV are 100 tokens: 0.1 s; of drafts one load. Both are wanted again with the same chance."""
    worth = Worth(CostModel(make_profile(load_s=load_s), NAMES))
    assert worth.victim(see(context_tokens=400)) is first
