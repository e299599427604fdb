"""Stop strings: where in a block of new tokens the text ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Text = Callable[[Sequence[int]], str]


class StopStrings:
    """Finds the token that completes a stop string, wherever token borders fall.

    Args:
        stops: The strings; none of them is empty.
        text: Text of generated tokens.
    """

    def __init__(self, stops: Sequence[str], text: Text) -> None:
        self._stops, self._text = tuple(stops), text

    def cut(self, generated: Sequence[int], known: int) -> int | None:
        """How many of the generated tokens to keep, None if all: up to the one that completes the first stop string.

        Args:
            generated: All generated tokens, new ones last.
            known: How many of them were searched before.
        """
        if not self._stops:
            return None
        for end in range(known + 1, len(generated) + 1):
            text = self._text(generated[:end])
            if any(stop in text for stop in self._stops):
                return end
        return None
