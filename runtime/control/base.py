"""The contract of a controller: an observation in, a decision out."""

from __future__ import annotations

from typing import Protocol

from runtime.control.observation import Observation
from runtime.core import Decision, Outcome


class Controller(Protocol):
    """Decides before every step of a session. Keeps no reference to an observation."""

    name: str

    def begin_stream(self) -> None:
        """A new stream of requests begins: forget what was learned in the one before."""
        ...

    def decide(self, observation: Observation) -> Decision:
        """The next decision; only legal choices (see ``Observation.mask``), but for ``Decision.wait``."""
        ...

    def learn(self, outcome: Outcome) -> None:
        """See what the last decision led to."""
        ...
