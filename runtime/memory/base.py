"""The contracts of memory: who brings a draft's weights, and what the manager tells the session."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Loaded(NamedTuple):
    """A finished load. ``payload`` is what the decoder runs; ``error`` says why there is none."""

    draft: int
    payload: Any
    seconds: float
    error: str | None = None


class Loader(Protocol):
    """Brings drafts from storage, one after another, while decoding goes on."""

    def start(self, draft: int) -> None:
        """Queue a load. Returns at once."""
        ...

    def poll(self) -> list[Loaded]:
        """Loads that have finished since the last call, in order. Returns at once."""
        ...

    def wait(self, draft: int) -> None:
        """Stall until the load of ``draft`` has finished; ``poll`` then returns it."""
        ...

    def fraction(self, draft: int) -> float:
        """Estimated part of a running load that is done, 0 to 1."""
        ...

    def close(self) -> None:
        """Stop. A running load is finished or abandoned; nothing is left half-written."""
        ...
