"""The command line as a script for bash 4 or newer; the package bash-completion is not needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from runtime.cli.completing.reading import Argument, Command, Takes

_SCRIPT = """# specpilot for bash
_specpilot() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= each
    if [[ $word == = ]]; then  # of --option=value bash makes three words
        word=
    elif [[ $before == = ]]; then
        before=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $each in
            {names}) command=$each; break ;;
        esac
    done
    COMPREPLY=()
    case $command:$before in
{values}
    esac
    if [[ $word != -* ]]; then
        case $command in
{positionals}
        esac
    fi
    case $command in
{options}
    esac
}}
complete -F _specpilot specpilot
"""

_PATHS = {Takes.FILE: "-f", Takes.FOLDER: "-d"}


def script(commands: Sequence[Command]) -> str:
    """The script for a program and its commands, as ``read_commands`` gives them."""
    program, *named = commands
    values = [
        f"        {'|'.join(f'{command.name}:{flag}' for flag in option.flags)}) {_value(option)}; return ;;"
        for command in commands
        for option in command.options
        if option.takes is not Takes.NOTHING
    ]
    positionals = [f"            '') {_words(command.name for command in named)}; return ;;"] + [
        f"            {command.name}) {_value(command.positional)}; return ;;"
        for command in named
        if command.positional is not None and command.positional.proposes
    ]
    options = [
        f"        {quote(command.name)}) {_words(flag for option in command.options for flag in option.flags)} ;;"
        for command in (program, *named)
    ]
    return _SCRIPT.format(
        names="|".join(command.name for command in named),
        values="\n".join(values),
        positionals="\n".join(positionals),
        options="\n".join(options),
    )


def _value(argument: Argument) -> str:
    kind = _PATHS.get(argument.takes)
    if kind is None:
        return _words(argument.values)
    return f'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen {kind} -- "$word")'


def _words(words: Iterable[str]) -> str:
    return f'mapfile -t COMPREPLY < <(compgen -W {quote(" ".join(words))} -- "$word")'
