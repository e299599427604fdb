"""This engine under its controllers: one target, a session with memory of its own for each controller."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.engines.base import Contender
from runtime.bundle import Bundle, read_bundle
from runtime.control.base import Controller
from runtime.control.factory import guard, make_controller
from runtime.control.static import plain_controller
from runtime.core import MemoryConfig, Request
from runtime.engine.opening import TRANSFORMERS
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from runtime.live import LiveModels, open_models, open_session
from runtime.profile import CostModel
from runtime.session import DecodeSession

PLAIN_FLOATS, PLAIN_OURS = "specpilot: plain, weights in fp32", "specpilot: plain"
STATIC, STACKED = "specpilot: best static", "specpilot: stacked"
POLICY, GUARDED = "specpilot: policy", "specpilot: policy, guarded"
INT8 = "specpilot int8"
PLAIN_INT8 = f"{INT8}: plain"
"""With rows rounded to 8 bit: its texts are compared with this one's."""
POLICY_GUARDED = "policy, guarded"
"""The name of the bundle's policy within its guard, beside those of ``make_controller``."""


@dataclass(frozen=True)
class Sessions:
    """Opens sessions over one target.

    Attributes:
        models: Target and zoo.
        bundle: Says how much memory a session has.
        costs: The device's profile.
        opened: Closes them.
    """

    models: LiveModels
    bundle: Bundle
    costs: CostModel
    opened: ExitStack

    def open(self, models: LiveModels | None = None) -> DecodeSession:
        """A session with empty memory; over other models than the usual ones if they are given."""
        models, memory = models or self.models, self.bundle.manifest["memory"]
        per_token = models.target.kv_bytes_per_token
        config = MemoryConfig(memory["budget_bytes"], memory["workspace_bytes"], per_token)
        return self.opened.enter_context(
            open_session(models, config, self.costs, memory["kv_reserve_tokens"], memory["decision_interval"])
        )

    def contender(self, label: str, name: str) -> Controlled:
        """A controller over a session of its own.

        Args:
            label: In reports.
            name: One that ``make_controller`` knows, or ``POLICY_GUARDED``.
        """
        bundle, costs, zoo = self.bundle, self.costs, self.bundle.zoo
        session = self.open()
        if name == POLICY_GUARDED:
            controller: Controller = guard(
                bundle.controller(), zoo.specs(bundle.manifest["memory"]["kv_reserve_tokens"]), costs
            )
        else:
            expected = tuple(draft.expected for draft in zoo.drafts)
            controller = make_controller(name, zoo.draft_names, costs, expected, bundle.controller)
        return Controlled(label, session, controller, frozenset(zoo.target.eos_ids))


class Controlled:
    """Implements ``Contender``: a controller over a session that lives from prompt to prompt, as a service does.

    Args:
        name: In reports.
        session: Its own session.
        controller: Who decides.
        eos_ids: Tokens that end a text.
    """

    family = "ours"

    def __init__(self, name: str, session: DecodeSession, controller: Controller, eos_ids: frozenset[int]) -> None:
        self.name, self.session, self.controller, self._eos_ids = name, session, controller, eos_ids
        controller.begin_stream()

    def request(self, prompt: tuple[int, ...], max_tokens: int) -> Request:
        """The request for a prompt."""
        return Request("prompt", prompt, max_tokens, self._eos_ids)

    def answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        session, controller = self.session, self.controller
        tokens: list[int] = []
        finished = not session.start([self.request(prompt, max_tokens)])
        while not finished:
            outcome = session.advance(controller.decide(session.observe()))
            controller.learn(outcome)
            tokens += outcome.tokens
            finished = outcome.stream_finished
        return tuple(tokens)

    def settle(self) -> None:
        memory = self.session.memory
        for draft in range(len(memory.drafts)):
            if memory.loading(draft):
                memory.loader.wait(draft)
        memory.poll()


def controlled(sessions: Sessions, static: str) -> list[Contender]:
    """Plain decoding, a static controller by its name, the stacked heuristics, the policy without and with guard."""
    made = {PLAIN_OURS: "plain", STATIC: static, STACKED: "stacked", POLICY: "policy", GUARDED: POLICY_GUARDED}
    return [sessions.contender(label, name) for label, name in made.items()]


def in_integers(folder: Path, threads: int, opened: ExitStack) -> list[Contender]:
    """Plain decoding, the stacked heuristics and the guarded policy by a target in int8.

    Args:
        folder: A bundle whose policy and profile are for int8.
        threads: CPU threads.
        opened: Closes the sessions.

    Raises:
        UserError: If the bundle is for another dtype.
    """
    bundle = read_bundle(folder)
    profile = bundle.profile
    if profile.dtype != "int8":
        raise UserError(f"{folder}: expected a bundle trained with a profile in int8, got one in {profile.dtype}")
    models = open_models(bundle.zoo, threads=threads, dtype="int8", engine=TRANSFORMERS)
    sessions = Sessions(models, bundle, CostModel(profile, bundle.zoo.draft_names), opened)
    return [sessions.contender(f"{INT8}: {name}", name) for name in ("plain", "stacked", POLICY_GUARDED)]


def in_floats(sessions: Sessions) -> Contender:
    """Plain decoding by a second copy of the target whose weights are kept in fp32, whatever grid they lie on."""
    network = AutoModelForCausalLM.from_pretrained(sessions.models.folder, dtype=torch.float32, local_files_only=True)
    models = replace(sessions.models, target=TransformersModel(network, compress=False))
    zoo = sessions.bundle.zoo
    controller = plain_controller(len(zoo.drafts))
    return Controlled(PLAIN_FLOATS, sessions.open(models), controller, frozenset(zoo.target.eos_ids))
