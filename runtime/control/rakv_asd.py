"""RAKV-ASD: reuse a stored KV prefix or not, and draft 0, 1, 2, 4 or 8 tokens, from measured cost.

Source: "RAKV-ASD: retrieval-augmented KV caching with adaptive speculative decoding", rebuilt from its published
description. One draft. The expected committed tokens of a round with acceptance a and gamma g are
``(1 - a^(g+1)) / (1 - a)`` (Leviathan et al. 2023, eq. 1); the length with the most of them per unit of measured time
is taken, plain decoding included.
"""

from __future__ import annotations

from typing import NamedTuple

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, speculate
from runtime.core import BLOCK_TOKENS, GAMMAS, Decision, Outcome, Phase
from runtime.profile import CostModel

TIE = 0.015
"""Share of a prefill that reuse must save: below, measured costs cannot tell, and bypassing takes no memory."""


class Length(NamedTuple):
    """A draft length and its expected committed tokens per plain decoding step; ``Length(0, 1.0)`` is plain."""

    gamma: int
    rate: float


def expected_committed(acceptance: float, gamma: int) -> float:
    """Mean tokens of a round of ``gamma`` guesses, each right with probability ``acceptance``."""
    return float(gamma + 1) if acceptance >= 1.0 else (1.0 - acceptance ** (gamma + 1)) / (1.0 - acceptance)


def round_rate(observation: Observation, draft: int, acceptance: float, gamma: int) -> float:
    """Expected tokens of a round of ``gamma`` guesses, one of ``GAMMAS``, per plain decoding step of its time.

    Absorbing what the draft has not seen is paid once and serves all rounds to come: it is shared out over those that
    the room left makes likely.
    """
    committed = expected_committed(acceptance, gamma)
    rounds = max(1.0, observation.value("room_tokens") / committed)
    draft_cost = gamma * float(observation.per_draft("step_ratio")[draft])
    catch_up = float(observation.per_draft("catch_up_cost")[draft]) / rounds
    return committed / (observation.value(f"verify_ratio_{gamma}") + draft_cost + catch_up)


def best_length(observation: Observation, draft: int, acceptance: float) -> Length:
    """The draft length with the highest rate, plain decoding included."""
    lengths = (Length(gamma, round_rate(observation, draft, acceptance, gamma)) for gamma in GAMMAS)
    return max((Length(0, 1.0), *lengths), key=lambda length: length.rate)


def reuse_pays(observation: Observation, costs: CostModel) -> bool:
    """Whether restoring the usable prefix is cheaper than computing it again."""
    usable, prompt = int(observation.value("usable_prefix_tokens")), int(observation.value("prompt_tokens"))
    disk = int(observation.value("usable_disk_tokens"))
    reuse_s = costs.kv_restore_s(usable) + costs.prefill_s(prompt - usable, usable)
    reuse_s += costs.kv_load_s(-(-disk // BLOCK_TOKENS) * BLOCK_TOKENS) if disk else 0.0  # whole blocks
    return reuse_s < costs.prefill_s(prompt, 0) * (1.0 - TIE)


class RakvAsdController:
    """RAKV-ASD's joint choice of KV reuse and draft length for one draft.

    Args:
        n_drafts: Drafts of the zoo.
        draft: Index of the draft.
        costs: Measured costs of the device.
        stop: Stop level; 0 as published.
        name: Name in reports.
    """

    def __init__(self, n_drafts: int, draft: int, costs: CostModel, stop: int = 0, name: str = "rakv_asd") -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._draft, self._costs, self._stop = draft, costs, stop

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, self._draft, reuse_kv=True)
        if observation.phase is Phase.ADMIT:
            return rest._replace(kv=rest.kv and self.reuse_pays(observation))
        return speculate(observation, self._draft, self.best_gamma(observation), self._stop, rest)

    def reuse_pays(self, observation: Observation) -> bool:
        """Whether restoring the usable prefix is cheaper than computing it again."""
        return reuse_pays(observation, self._costs)

    def best_gamma(self, observation: Observation) -> int:
        """The length with the most expected tokens per second; 0 = plain."""
        return best_length(observation, self._draft, float(observation.per_draft("acceptance")[self._draft])).gamma

    def learn(self, outcome: Outcome) -> None: ...
