"""The command line as a script for fish."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from runtime.cli.completing.reading import Argument, Command, Takes

_START = "complete -c specpilot"
_FOLDERS = "(__fish_complete_directories)"


def script(commands: Sequence[Command]) -> str:
    """The script for a program and its commands, as ``read_commands`` gives them."""
    program, *named = commands
    lines = ["# specpilot for fish", f"{_START} -f"]
    lines += [f"{_START} -n __fish_use_subcommand -a {command.name} -d {quote(command.help)}" for command in named]
    lines += [_line("__fish_use_subcommand", argument) for argument in program.arguments]
    for command in named:
        seen = f"__fish_seen_subcommand_from {command.name}"
        lines += [_line(seen, argument) for argument in command.arguments]
    return "\n".join(lines) + "\n"


def _line(condition: str, argument: Argument) -> str:
    parts = [_START, "-n", quote(condition), *map(_flag, argument.flags), *_value(argument), "-d", quote(argument.help)]
    return " ".join(parts)


def _flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _value(argument: Argument) -> list[str]:
    match argument.takes:
        case Takes.NOTHING:
            return []
        case Takes.FILE:
            return ["-r", "-F"]
        case Takes.FOLDER:
            return ["-x", "-a", quote(_FOLDERS)]
        case Takes.TEXT:
            return ["-x", "-a", quote(" ".join(argument.values))]
