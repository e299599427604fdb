"""Every command explains itself: what it does, examples, exit codes."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from runtime.cli import main, make_parser
from runtime.cli.common import EXIT_CODES
from runtime.cli.completing.reading import read_commands

COMMANDS = [command.name for command in read_commands(make_parser()) if command.name]


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    (found,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    parser: argparse.ArgumentParser = found.choices[command]
    return parser


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    return capsys.readouterr().out


def test_the_commands_are_all_there() -> None:
    assert COMMANDS == ["generate", "chat", "serve", "bench", "info", "verify", "profile", "pull", "completion"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = help_of(capsys, command)
    examples = text.partition("\nexamples:\n")[2].partition("exit codes:")[0]
    assert len(re.findall(rf"\bspecpilot {command}\b", examples)) >= 2
    told = re.findall(r"\b(\d+) [a-z]", text.partition("exit codes:")[2])
    assert set(told) >= {str(code) for code in EXIT_CODES}
    assert all(action.help for action in parser_of(command)._actions)


def test_the_help_of_the_program_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    assert "examples:" in text and "exit codes: 0 done, 1 a check failed" in text
    assert all(re.search(rf"^ +{command} ", text, re.M) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_path_says_whether_it_is_a_file_or_a_folder(command: str) -> None:
    paths = [action for action in parser_of(command)._actions if action.type is Path]
    assert {action.metavar for action in paths} <= {"FILE", "DIR"}


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_calls_that_parse(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = help_of(capsys, command).partition("\nexamples:\n")[2].partition("exit codes:")[0]
    calls = re.findall(rf"\bspecpilot ({command}\b[^|>)\n]*)", text)
    for call in calls:
        make_parser().parse_args(shlex.split(call, comments=True))
