"""Text on standard output while it grows."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.decoding.stopping import Text, VisibleText


class Printer:
    """Prints text as tokens are committed, but no part of a stop string and no unfinished character.

    Args:
        text: Text of generated tokens.
        stops: The request's stop strings.
    """

    def __init__(self, text: Text, stops: Sequence[str] = ()) -> None:
        self._visible = VisibleText(text, stops)

    def show(self, tokens: Sequence[int]) -> None:
        """Print what newly committed tokens make certain."""
        print(self._visible.push(tokens), end="", flush=True)

    def finish(self) -> None:
        """Print what was held back; the text has ended."""
        print(self._visible.finish(), flush=True)
