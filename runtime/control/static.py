"""Controllers that never change their mind: plain decoding, and one draft with one length and one stop level."""

from __future__ import annotations

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, speculate
from runtime.core import Decision, Outcome


class StaticController:
    """One draft, one gamma, one stop level; loaded once, plain until it is there.

    Args:
        n_drafts: Drafts of the zoo.
        draft: Index of the draft; None = plain decoding.
        gamma: Draft length, one of ``GAMMAS``.
        stop: Stop level.
        reuse_kv: Whether stored prefixes are kept and reused greedily.
        name: Name in reports.
    """

    def __init__(
        self,
        n_drafts: int,
        draft: int | None,
        gamma: int = 0,
        stop: int = 0,
        reuse_kv: bool = True,
        name: str = "static",
    ) -> None:
        self.name = name
        self._codec = ActionCodec(n_drafts)
        self._draft, self._gamma, self._stop, self._reuse_kv = draft, gamma, stop, reuse_kv

    def begin_stream(self) -> None: ...

    def decide(self, observation: Observation) -> Decision:
        rest = background(observation, self._codec, self._draft, self._reuse_kv)
        return speculate(observation, self._draft, self._gamma, self._stop, rest)

    def learn(self, outcome: Outcome) -> None: ...


def plain_controller(n_drafts: int, reuse_kv: bool = False) -> StaticController:
    """Plain decoding; with ``reuse_kv`` stored prefixes are used all the same."""
    return StaticController(n_drafts, None, reuse_kv=reuse_kv, name="plain_reuse" if reuse_kv else "plain")
