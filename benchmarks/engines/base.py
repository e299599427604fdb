"""The contract of whatever answers prompts in this benchmark."""

from __future__ import annotations

from typing import Protocol

PLAIN = "transformers: plain"
"""The reference of every ratio and of every text."""


class Contender(Protocol):
    """Answers prompts greedily.

    Attributes:
        name: In reports.
        family: ``plain``, ``assisted``, ``lookup`` or ``ours``.
    """

    name: str
    family: str

    def answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        """Token ids of the greedy answer, an ending token included. This is what is timed."""
        ...

    def settle(self) -> None:
        """Finish what goes on in the background, so that it does not disturb who comes next. Not timed."""
        ...
