"""Text on standard output while it grows, its words coloured by who guessed them if that is wanted."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from runtime.core import Outcome
from runtime.decoding.stopping import Text, VisibleText

COLOURS = (36, 33, 35, 32, 34, 31)
"""ANSI foregrounds of drafts, by index: cyan, yellow, magenta, green, blue, red; then from the start again."""


class Palette:
    """A colour for every draft; what the target said of its own stays as it is.

    Args:
        drafts: Names of the drafts, by index.
    """

    def __init__(self, drafts: Sequence[str]) -> None:
        self._drafts = tuple(drafts)

    def paint(self, text: str, draft: int | None) -> str:
        """The text in the draft's colour; None = the target's own."""
        if draft is None or not text:
            return text
        return f"\x1b[{COLOURS[draft % len(COLOURS)]}m{text}\x1b[0m"

    def legend(self) -> str:
        """Which colour is whose."""
        return " ".join(self.paint(name, index) for index, name in enumerate(self._drafts))


class Printer:
    """Prints text as tokens are committed, but no part of a stop string and no unfinished character.

    Args:
        text: Text of generated tokens.
        stops: The request's stop strings.
        palette: Colours of the drafts; None = all in one colour.
    """

    def __init__(self, text: Text, stops: Sequence[str] = (), palette: Palette | None = None) -> None:
        self._visible, self._palette = VisibleText(text, stops), palette

    def show(self, outcome: Outcome) -> None:
        """Print what newly committed tokens make certain."""
        if self._palette is None:
            text = self._visible.push(outcome.tokens)
        else:
            accepted = outcome.round.accepted if outcome.round else 0
            parts = [
                self._palette.paint(self._visible.push([token]), outcome.decision.draft if index < accepted else None)
                for index, token in enumerate(outcome.tokens)
            ]
            text = "".join(parts)
        print(text, end="", flush=True)

    def finish(self) -> None:
        """Print what was held back; the text has ended."""
        print(self._visible.finish(), flush=True)


def show_source_option(parser: argparse.ArgumentParser) -> None:
    """Whether text is coloured by who guessed it."""
    parser.add_argument(
        "--show-source",
        action="store_true",
        help="colour every accepted guess by the draft that made it (on a terminal, unless NO_COLOR is set)",
    )


def palette_for(options: argparse.Namespace, drafts: Sequence[str]) -> Palette | None:
    """The colours of an answer, with a legend on stderr; None without ``--show-source``, or where colour is unfit."""
    if not options.show_source or not takes_colour(sys.stdout):
        return None
    palette = Palette(drafts)
    if takes_colour(sys.stderr):
        print(f"guessed by: {palette.legend()}", file=sys.stderr)
    return palette


def takes_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user wants colour."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
