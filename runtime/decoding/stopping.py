r"""Where a text ends before its length does: stop strings, and a client that went away.

    tokens     …  "an E"   "N"   "D\xf0"   "\x9f…"             stop string "END"
    text       …   an E     N     D�                          searched with every token, token borders do not matter
    committed  …  "an E"   "N"   "D\xf0"                       the token that completes the string is the last one
    shown      …   an                                          no part of the string, no part of a character

Text grows token by token through ``TextStream``, which decodes a window of a few tokens each time, never the whole
text. Only generated tokens count: a string that began in the prompt is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from runtime.errors import UserError

Text = Callable[[Sequence[int]], str]

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode the bytes of an unfinished character to."""

HELD_TOKENS = 8
"""Tokens after which text that does not settle is taken as it is; a character has at most 4 bytes."""


class Cancelled(Exception):
    """The request in hand was cancelled; the caches hold committed text only."""


@runtime_checkable
class Cancellable(Protocol):
    """A decoder that can stop in the middle of a step."""

    def watch(self, cancelled: Callable[[], bool]) -> None:
        """Ask ``cancelled`` between forwards; if it says yes, give up with ``Cancelled``."""
        ...


class CancelFlag:
    """Says whether the request in hand was cancelled. Raised by any thread or signal handler, read by the decoder."""

    def __init__(self) -> None:
        self.raised = False

    def __call__(self) -> bool:
        return self.raised


class Found(NamedTuple):
    """A stop string in a text: its first character, and the one behind its last."""

    start: int
    end: int


def find_stop(text: str, stops: Sequence[str]) -> Found | None:
    """The stop string that ends first (of several ending there: the longest); None if there is none."""
    found = [Found(start, start + len(stop)) for stop in stops if (start := text.find(stop)) >= 0]
    return min(found, key=lambda one: (one.end, one.start), default=None)


def has_ended(tokens: Sequence[int], eos_ids: Collection[int], text: str, stops: Sequence[str]) -> bool:
    """Whether a text ended by itself, with an ending token or a stop string; else it was cut."""
    return bool(tokens) and (tokens[-1] in eos_ids or find_stop(text, stops) is not None)


def trim(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string; all of it if there is none."""
    found = find_stop(text, stops)
    return text if found is None else text[: found.start]


def refuse_unless_stops(stops: Sequence[str]) -> None:
    """Make sure that stop strings can be searched for.

    Raises:
        UserError: If one of them is empty: it would end every text before it begins.
    """
    if not all(stops):
        raise UserError(f"stop strings must not be empty, got {list(stops)}: leave the empty one out")


class TextStream:
    """Text of a growing token sequence, decoded in windows: the tokens that settled last, and those after them.

    Args:
        text: Text of tokens.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._window: tuple[int, ...] = ()
        self._settled = 0  # tokens of the window whose text was given out
        self._known = ""  # text of those
        self._open = ""  # text of the others

    @property
    def open_text(self) -> str:
        """Text of tokens that have not settled: it may still change, mostly an unfinished character at its end."""
        return self._open

    def push(self, token: int) -> str:
        """Add a token; the text that settled with it, maybe none."""
        window = (*self._window, token)
        text = self._text(window)
        stable = text.startswith(self._known) and not text.endswith(INCOMPLETE)
        fresh = text[len(self._known) :]
        overdue = len(window) - self._settled >= HELD_TOKENS
        if (stable and fresh) or overdue:
            rest = window[self._settled :]
            self._window, self._settled, self._known, self._open = rest, len(rest), self._text(rest), ""
            return fresh
        self._window, self._open = window, fresh
        return ""

    def finish(self) -> str:
        """No token follows: the text that never settled."""
        text, self._open = self._open, ""
        return text

    def fork(self) -> TextStream:
        """A copy that grows on its own."""
        other = TextStream(self._text)
        other._window, other._settled, other._known, other._open = self._window, self._settled, self._known, self._open
        return other


class StopStrings:
    """Finds the token that completes a stop string, wherever token borders fall.

    Args:
        stops: The strings.
        text: Text of generated tokens.

    Raises:
        UserError: If a string is empty.
    """

    def __init__(self, stops: Sequence[str], text: Text) -> None:
        refuse_unless_stops(stops)
        self._stops = tuple(stops)
        self._reach = max(map(len, stops), default=1) - 1  # characters before a token that a string may begin in
        self._stream = TextStream(text)
        self._tail = ""

    def push(self, tokens: Sequence[int]) -> int | None:
        """Search new tokens: how many of them to keep, up to the one that completes a string; None = all.

        Nothing is taken in if the tokenizer fails or the call is interrupted.
        """
        stream, tail = self._stream.fork(), self._tail
        for kept, token in enumerate(tokens, 1):
            tail += stream.push(token)
            if find_stop(tail + stream.open_text.rstrip(INCOMPLETE), self._stops) is not None:
                return kept
            tail = tail[len(tail) - min(self._reach, len(tail)) :]
        self._stream, self._tail = stream, tail
        return None


class VisibleText:
    """What of a text may be shown while it grows: nothing that could still become part of a stop string or character.

    Args:
        text: Text of generated tokens.
        stops: The request's stop strings.
    """

    def __init__(self, text: Text, stops: Sequence[str] = ()) -> None:
        refuse_unless_stops(stops)
        self._stops = tuple(stops)
        self._stream = TextStream(text)
        self._held = ""
        self._stopped = False

    def push(self, tokens: Sequence[int]) -> str:
        """Add committed tokens; the text that may be shown now."""
        return self._show("".join([self._stream.push(token) for token in tokens]))

    def finish(self) -> str:
        """The text has ended: the rest of what is to be shown."""
        shown = self._show(self._stream.finish())
        rest, self._held = self._held, ""
        return shown + rest

    def _show(self, fresh: str) -> str:
        if self._stopped:
            return ""
        text = self._held + fresh
        found = find_stop(text, self._stops)
        if found is not None:
            self._stopped, self._held = True, ""
            return text[: found.start]
        keep = len(text) - self._undecided(text)
        self._held = text[keep:]
        return text[:keep]

    def _undecided(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string begins with."""
        longest = min(max(map(len, self._stops), default=1) - 1, len(text))
        ends = (size for size in range(longest, 0, -1) if any(stop.startswith(text[-size:]) for stop in self._stops))
        return next(ends, 0)
