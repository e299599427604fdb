"""What the observation says of stored KV: how often it was found, and what computing again would cost."""

from __future__ import annotations

import pytest

from runtime.core import PLAIN, Decision, Phase
from runtime.session import DecodeSession
from runtime.state import HIT_DECAY, HIT_START
from tests.factories import make_world


def to_phase(session: DecodeSession, phase: Phase, decision: Decision = PLAIN) -> None:
    while session.observe().phase is not phase:
        session.advance(decision)


def test_hits_are_remembered_from_request_to_request() -> None:
    world = make_world(requests=3)
    stream = world.streams(0, 1)[0]  # prompts start alike
    session = world.session()
    session.start(item.request for item in stream)
    assert session.observe().value("hit_share") == pytest.approx(HIT_DECAY * HIT_START)
    keep = PLAIN._replace(kv=True)
    to_phase(session, Phase.COMPLETE)
    before = session.observe().value("hit_share")
    session.advance(keep)
    seen = session.observe()
    assert seen.value("usable_share") > 0.0
    assert seen.value("hit_share") == pytest.approx(
        HIT_DECAY * before + (1.0 - HIT_DECAY) * seen.value("usable_share"), rel=1e-5
    )


def test_again_cost_is_the_prefill_that_would_be_needed() -> None:
    world = make_world(requests=2)
    session = world.session()
    session.start(item.request for item in world.streams(0, 1)[0])
    plain_s = world.costs.plain_s(world.costs.profile.reference_context)
    assert session.observe().value("again_cost") == 0.0  # nothing is stored yet
    to_phase(session, Phase.COMPLETE)
    seen = session.observe()
    text = int(seen.value("context_tokens"))
    assert seen.value("again_cost") == pytest.approx(world.costs.prefill_s(text, 0) / plain_s, rel=1e-5)
    session.advance(PLAIN._replace(kv=True))
    seen = session.observe()
    usable = int(seen.value("usable_prefix_tokens"))
    assert seen.value("again_cost") == pytest.approx(world.costs.prefill_s(usable, 0) / plain_s, rel=1e-5) != 0.0
