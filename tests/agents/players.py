"""A world with everything that costs time, and controllers that do everything in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agents.evaluation import Factory
from envs.workload import Item
from envs.world import ReplayWorld
from runtime.control.action import ActionCodec
from runtime.control.memspec import MemSpecController
from runtime.control.observation import Observation
from runtime.control.static import StaticController, plain_controller
from runtime.core import Decision, Outcome, Request
from runtime.profile import CostModel, Curve
from tests.factories import make_profile, make_specs, make_world
from tests.replay.scripted import EOS, make_trace

NAMES = ("code", "math", "prose", "lookup")


class RandomController:
    """Any legal decision; now and then it waits for a load."""

    name = "random"

    def __init__(self, n_drafts: int, seed: int) -> None:
        self._codec = ActionCodec(n_drafts)
        self._rng = np.random.default_rng(seed)

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        parts = self._codec.split_mask(observation.mask)
        decision = self._codec.decode([int(self._rng.choice(np.flatnonzero(part))) for part in parts])
        if self._rng.random() < 0.05:
            return decision._replace(draft=int(self._rng.integers(self._codec.n_drafts)), gamma=2, wait=True)
        return decision

    def learn(self, outcome: Outcome) -> None: ...


def costly_world(
    budget_bytes: int = 2900, contention: bool = True, disk_bytes: int = 0, requests: int = 4
) -> ReplayWorld:
    """Three drafts, a budget of two and some KV, slow loads, a draft whose narrowest forward is not the quickest.

    Without contention loads take no time and nothing is slowed down.
    """
    profile = make_profile(NAMES, load_s=0.6 if contention else 0.0)
    odd = replace(profile.drafts["math"], forward=Curve((1.0, 2.0, 101.0), (0.012, 0.009, 0.11)))
    slow = replace(
        profile,
        drafts={**profile.drafts, "math": odd},
        decode_slowdown=1.4 if contention else 1.0,
        load_slowdown=1.3 if contention else 1.0,
    )
    world = make_world(NAMES, budget_bytes, requests=requests)
    memory = replace(world.config.memory, disk_bytes=disk_bytes)
    costs = CostModel(slow, NAMES)
    return replace(
        world,
        drafts=make_specs(NAMES),
        costs=costs,
        config=replace(world.config, memory=memory),
    )


def scripted_item(seed: int, cut: int = 0) -> Item:
    """A made-up prompt; with a cut its text is left before its end."""
    trace = make_trace(seed)
    most = max(1, len(trace.output_ids) - cut) if cut or trace.output_ids[-1] != EOS else len(trace.output_ids) + 3
    return Item(Request(trace.prompt_id, trace.prompt_ids, most, frozenset({EOS})), trace)


def players() -> dict[str, Factory]:
    """Controllers by name."""
    n = len(NAMES)
    static: dict[str, Factory] = {
        f"static:{draft}:{gamma}": (lambda d=draft, g=gamma: StaticController(n, d, g, stop=g % 4))  # type: ignore[misc]
        for draft in range(n)
        for gamma in (2, 8)
    }
    return {
        "plain": lambda: plain_controller(n),
        "memspec": lambda: MemSpecController(n, 4, 1),
        "random": lambda: RandomController(n, 0),
        "random_2": lambda: RandomController(n, 1),
        **static,
    }
