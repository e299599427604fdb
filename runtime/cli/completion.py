"""``specpilot completion``: what a shell needs to complete the command, made from the command line itself."""

from __future__ import annotations

import argparse
from typing import Any

from runtime.cli.common import add_command
from runtime.cli.completing import bash, fish, zsh
from runtime.cli.completing.reading import read_commands

SHELLS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}

EXAMPLES = (
    "specpilot completion bash > ~/.local/share/bash-completion/completions/specpilot",
    "specpilot completion zsh > ~/.zfunc/_specpilot        # a folder of fpath",
    "specpilot completion fish > ~/.config/fish/completions/specpilot.fish",
    "source <(specpilot completion bash)                   # for this shell only",
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "completion",
        "print a script for the shell",
        "Print a script that lets the shell complete commands, options and their values. Print it again after an "
        "update of specpilot.",
        EXAMPLES,
    )
    parser.add_argument("shell", choices=tuple(SHELLS), help="which shell the script is for")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    from runtime.cli import make_parser  # it imports this module

    print(SHELLS[options.shell](read_commands(make_parser())), end="")
    return 0
