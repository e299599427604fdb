"""What there is to complete: commands, options and what an option takes, read from the parser that also reads calls."""

from __future__ import annotations

import argparse
import enum
from dataclasses import dataclass

from runtime.control.factory import NAMES
from runtime.engine.dtypes import AUTO_DTYPE, DTYPES

VALUES = {
    "--controller": tuple(name.partition(":")[0].partition("[")[0] for name in NAMES.split(", ")),
    "--device": ("cpu", "cuda"),
    "--dtype": (AUTO_DTYPE, *DTYPES),
}
"""Values worth proposing where more than these are legal; of controllers the part before the first colon."""


class Takes(enum.Enum):
    """What comes behind an option."""

    NOTHING = enum.auto()
    TEXT = enum.auto()
    FILE = enum.auto()
    FOLDER = enum.auto()


_PATHS = {"FILE": Takes.FILE, "DIR": Takes.FOLDER}
"""What is meant by the names of values that are paths."""


@dataclass(frozen=True)
class Argument:
    """An option, or an argument without a flag.

    Attributes:
        flags: As typed, e.g. ``--bundle``; empty for an argument without a flag.
        help: First words of its help.
        takes: What comes behind it; of an argument without a flag, what it is.
        values: Proposals for a text; may be empty.
        many: Whether it may be given several times.
    """

    flags: tuple[str, ...]
    help: str
    takes: Takes
    values: tuple[str, ...] = ()
    many: bool = False

    @property
    def proposes(self) -> bool:
        """Whether there is anything to propose for its value."""
        return bool(self.values) or self.takes in (Takes.FILE, Takes.FOLDER)


@dataclass(frozen=True)
class Command:
    """A command with its arguments; the program itself has the name ""."""

    name: str
    help: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> tuple[Argument, ...]:
        """Those with a flag."""
        return tuple(argument for argument in self.arguments if argument.flags)

    @property
    def positional(self) -> Argument | None:
        """The one without a flag."""
        return next((argument for argument in self.arguments if not argument.flags), None)


def read_commands(parser: argparse.ArgumentParser) -> tuple[Command, ...]:
    """The program itself, then its commands in the order of its help."""
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    named = (
        Command(listed.dest, listed.help or "", _arguments(subparsers.choices[listed.dest]))
        for listed in subparsers._choices_actions  # one of them for every command, with its help
    )
    return (Command("", "", _arguments(parser)), *named)


def _arguments(parser: argparse.ArgumentParser) -> tuple[Argument, ...]:
    return tuple(
        _argument(action)
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS
    )


def _argument(action: argparse.Action) -> Argument:
    flags = tuple(action.option_strings)
    values = tuple(map(str, action.choices or ())) or next((VALUES[flag] for flag in flags if flag in VALUES), ())
    takes = Takes.NOTHING if action.nargs == 0 else _PATHS.get(str(action.metavar), Takes.TEXT)
    return Argument(flags, _brief(action.help or ""), takes, values, isinstance(action, argparse._AppendAction))


def _brief(text: str) -> str:
    """The first part of a help text, which a shell shows beside what it proposes."""
    return text.partition(";")[0].partition(" (default")[0].partition(": ")[0]
