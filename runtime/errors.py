"""What can go wrong because of what a user gave us."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the user's: a wrong path, file or option.

    It carries one clear message (what was expected, what was got, what to do); the command line prints it without a
    traceback and exits with status 2.
    """
