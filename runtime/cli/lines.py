"""Lines that a user types, with editing and history where the system has them; or lines of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from runtime.errors import UserError

PROMPT = "> "


def interactive() -> bool:
    """Whether somebody sits at a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_lines(hint: str) -> Iterator[str]:
    """Lines from the terminal until Ctrl-D. Ctrl-C throws the line away and shows the hint."""
    try:
        import readline  # noqa: F401  # input() then edits lines and remembers them
    except ImportError:  # Windows has none; its console edits lines itself
        pass
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(f"\n{hint}", file=sys.stderr)


def piped_lines() -> Iterator[str]:
    """Lines of standard input.

    Raises:
        UserError: If they are not UTF-8 text.
    """
    try:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 text ({error}): convert it first") from None
