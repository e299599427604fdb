"""The command line as a script for zsh: a file ``_specpilot`` in a folder of ``fpath``, or sourced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from shlex import quote

from runtime.cli.completing.reading import Argument, Command, Takes

_SCRIPT = """#compdef specpilot
_specpilot() {{
    local context state state_descr line
    local -A opt_args
    _arguments -C {program} \\
        '1: :->command' \\
        '*:: :->arguments' && return
    case $state in
        command)
            local -a commands=(
{names}
            )
            _describe -t commands command commands ;;
        arguments)
            case $line[1] in
{commands}
            esac ;;
    esac
}}
if [[ $funcstack[1] == _specpilot ]]; then
    _specpilot "$@"
else
    compdef _specpilot specpilot
fi
"""

_PATHS = {Takes.FILE: "_files", Takes.FOLDER: "_files -/"}


def script(commands: Sequence[Command]) -> str:
    """The script for a program and its commands, as ``read_commands`` gives them."""
    program, *named = commands
    return _SCRIPT.format(
        program=" ".join(_specs(program.arguments)),
        names="\n".join(f"                {quote(f'{command.name}:{command.help}')}" for command in named),
        commands="\n".join(
            f"                {command.name})\n                    _arguments \\\n"
            + " \\\n".join(f"                        {spec}" for spec in _specs(command.arguments))
            + " ;;"
            for command in named
        ),
    )


def _specs(arguments: Iterable[Argument]) -> list[str]:
    """What ``_arguments`` reads, one for every flag."""
    return [
        quote(spec) for argument in arguments for spec in (_flagged(argument) if argument.flags else [_bare(argument)])
    ]


def _flagged(option: Argument) -> list[str]:
    value = "" if option.takes is Takes.NOTHING else f":value:{_action(option)}"
    others = "" if option.many or len(option.flags) == 1 else f"({' '.join(option.flags)})"
    times = "*" if option.many else ""
    return [
        f"{others}{times}{flag}{'=' if value and flag.startswith('--') else ''}[{_escaped(option.help)}]{value}"
        for flag in option.flags
    ]


def _bare(argument: Argument) -> str:
    return f"1:{_escaped(argument.help)}:{_action(argument)}"


def _action(argument: Argument) -> str:
    if argument.takes in _PATHS:
        return _PATHS[argument.takes]
    return f"({' '.join(argument.values)})" if argument.values else " "


def _escaped(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)
