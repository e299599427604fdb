"""A decision map holds the controller's own answers to the questions it says it asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.decision_map import decision_map
from runtime.control.memspec import MemSpecController
from runtime.control.observation import Observation, bounds
from runtime.control.rakv_asd import RakvAsdController
from runtime.core import Decision, Outcome, Phase
from tests.factories import make_costs, make_world

DRAFT = 1
GRID = (0.0, 0.4, 0.8, 1.0)
CONTEXTS = (64, 512, 1024)


class Recorder:
    """Answers by context and keeps what it was asked; names a draft that is not there for very short contexts."""

    name = "recorder"

    def __init__(self) -> None:
        self.asked: list[Observation] = []
        self.streams = 0

    def begin_stream(self) -> None:
        self.streams += 1

    def decide(self, observation: Observation) -> Decision:
        self.asked.append(observation)
        context = observation.value("context_tokens")
        return Decision(draft=0 if context < 100 else DRAFT, gamma=8 if context > 1000 else 2)

    def learn(self, outcome: Outcome) -> None:
        raise AssertionError("nothing happened to learn from")


def template() -> Observation:
    """A real observation in the middle of a text."""
    world = make_world()
    session = world.session()
    session.start(item.request for item in world.streams(0, 1)[0])
    controller = MemSpecController(3, 2)
    while True:
        observation = session.observe()
        if observation.phase is Phase.DECODE and observation.value("generated_tokens") >= 5:
            return observation
        session.advance(controller.decide(observation))


def test_the_map_holds_the_controllers_answers() -> None:
    recorder = Recorder()
    found = decision_map(recorder, template(), DRAFT, GRID, CONTEXTS)
    assert (found.controller, found.draft, found.acceptances, found.contexts) == ("recorder", DRAFT, GRID, CONTEXTS)
    assert found.gammas == ((0, 2, 8),) * len(GRID)  # another draft than the one asked about counts as plain
    assert recorder.streams == 1


def test_the_questions_are_what_they_say() -> None:
    recorder, real = Recorder(), template()
    before = real.vector.copy()
    decision_map(recorder, real, DRAFT, GRID, CONTEXTS)
    assert np.array_equal(real.vector, before)
    low, high = bounds(3)
    for place, asked in enumerate(recorder.asked):
        acceptance, context = GRID[place // len(CONTEXTS)], CONTEXTS[place % len(CONTEXTS)]
        assert asked.value("context_tokens") == context
        assert asked.value("prompt_tokens") + asked.value("generated_tokens") == context
        for name in ("acceptance", "predicted", "confidence"):
            assert asked.per_draft(name)[DRAFT] == np.float32(acceptance)
        assert asked.per_draft("resident").tolist() == [0.0, 1.0, 0.0]
        for name in ("staleness", "catch_up_tokens", "catch_up_cost", "next_shift", "load_left"):
            assert asked.per_draft(name)[DRAFT] == 0.0
        assert asked.mask[1:13].tolist() == [False] * 4 + [True] * 4 + [False] * 4
        assert (asked.vector >= low).all() and (asked.vector <= high).all()


def test_rakv_asd_guesses_further_the_surer_the_draft() -> None:
    rakv = RakvAsdController(3, DRAFT, make_costs())
    found = decision_map(rakv, template(), DRAFT)
    columns = np.array(found.gammas)
    assert columns.shape == (41, 16)
    assert columns[0, 0] == 0 and columns[-1, 0] == 8
    assert (np.diff(columns, axis=0) >= 0).all() and (columns == columns[:, :1]).all()


def test_a_controller_of_another_draft_stays_plain() -> None:
    found = decision_map(RakvAsdController(3, 0, make_costs()), template(), DRAFT, GRID, CONTEXTS)
    assert {gamma for row in found.gammas for gamma in row} == {0}


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="expected an observation of phase DECODE, got ADMIT"):
        decision_map(Recorder(), replace(template(), phase=Phase.ADMIT), DRAFT)
    with pytest.raises(ValueError, match="draft: expected an index below 3, got 3"):
        decision_map(Recorder(), template(), 3)
