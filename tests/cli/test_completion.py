"""Shell completion, tried in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.cli import main, make_parser
from runtime.cli.completing.reading import Command, read_commands
from runtime.engine.dtypes import DTYPES
from tests.cli.terminal import Terminal

PROGRAM, *NAMED = read_commands(make_parser())
NAMES = [command.name for command in NAMED]

Words = Callable[..., list[str]]


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    """Writes the script for a shell."""

    def write(shell: str) -> Path:
        assert main(["completion", shell]) == 0
        path = tmp_path / f"script.{shell}"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        return path

    return write


def needs(shell: str) -> str:
    """Path of a shell; the test is skipped without it."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


def flags(command: Command) -> list[str]:
    return [flag for option in command.options for flag in option.flags]


# -- bash --------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_bash(script: Callable[[str], Path], tmp_path: Path) -> Words:
    """What bash proposes for words, the last of which is being typed, in a folder with a file and two folders."""
    shell, path, folder = needs("bash"), script("bash"), tmp_path / "here"
    for name in ("bundle", "my zoo"):
        (folder / name).mkdir(parents=True)
    (folder / "notes.txt").touch()

    def propose(*words: str) -> list[str]:
        program = (
            'set -u; source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
            "$(complete -p specpilot | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); "
            'if ((${#COMPREPLY[@]})); then printf "%s\\n" "${COMPREPLY[@]}"; fi'
        )
        call = [shell, "--norc", "-c", program, "bash", str(path), "specpilot", *words]
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return propose


def test_bash_proposes_commands(in_bash: Words) -> None:
    assert in_bash("") == NAMES
    assert in_bash("-v", "") == NAMES
    assert in_bash("ge") == ["generate"]
    assert in_bash("--v") == ["--version", "--verbose"]


@pytest.mark.parametrize("command", NAMED, ids=NAMES)
def test_bash_proposes_every_option(in_bash: Words, command: Command) -> None:
    assert in_bash(command.name, "-") == flags(command)
    assert in_bash("-v", command.name, "--he") == ["--help"]


def test_bash_proposes_values(in_bash: Words) -> None:
    assert in_bash("chat", "--dtype", "") == ["auto", *DTYPES]
    assert in_bash("generate", "--dtype", "=", "b") == ["bfloat16"]
    assert in_bash("generate", "--dtype", "=") == ["auto", *DTYPES]
    assert in_bash("serve", "--controller", "mem") == ["memspec", "memspec_no_memory", "memspec_no_prediction"]
    assert in_bash("completion", "") == ["bash", "zsh", "fish"]
    assert in_bash("generate", "--prompt", "") == []
    assert in_bash("generate", "--stats", "") == flags(NAMED[0])


def test_bash_proposes_paths(in_bash: Words) -> None:
    assert sorted(in_bash("generate", "--bundle", "")) == ["bundle", "my zoo"]
    assert in_bash("info", "m") == ["my zoo"]
    assert in_bash("profile", "--out", "n") == ["notes.txt"]


def test_a_bash_at_a_terminal_completes_as_you_type(script: Callable[[str], Path], tmp_path: Path) -> None:
    shell, path = needs("bash"), script("bash")
    (tmp_path / "bundle").mkdir()
    with Terminal([shell, "--norc", "--noprofile", "-i"], tmp_path, PS1="ready> ", INPUTRC="/dev/null") as terminal:
        terminal.read_until("ready> ")
        terminal.type(f"specpilot() {{ printf '<%s>' \"$@\"; }}; source {path}\n")
        terminal.read_until("ready> ")
        terminal.type("specpilot gen\t--bund\tbun\t\n")
        assert "<generate><--bundle><bundle/>" in terminal.read_until("<bundle/>")


# -- zsh and fish ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_everything(script: Callable[[str], Path], shell: str) -> None:
    text = script(shell).read_text()
    assert all(command.name in text for command in NAMED)
    long = {flag.removeprefix("--") for command in NAMED for flag in flags(command) if flag.startswith("--")}
    assert all(flag in text for flag in long)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_script(script: Callable[[str], Path], shell: str) -> None:
    done = subprocess.run([needs(shell), "-n", str(script(shell))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_proposes(script: Callable[[str], Path], tmp_path: Path) -> None:
    shell, path = needs("fish"), script("fish")
    (tmp_path / "bundle").mkdir()

    def propose(line: str) -> list[str]:
        call = [shell, "--no-config", "-c", f"source {path}; complete -C '{line}'"]
        done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
        return [proposal.partition("\t")[0] for proposal in done.stdout.splitlines()]

    assert sorted(propose("specpilot ")) == sorted(NAMES)
    assert set(flags(NAMED[1])) - {"-h"} <= set(propose("specpilot chat --"))
    assert propose("specpilot chat --dtype b") == ["bfloat16"]
    assert propose("specpilot info ") == ["bundle/"]
    assert propose("specpilot completion z") == ["zsh"]


def test_zsh_proposes(script: Callable[[str], Path], tmp_path: Path) -> None:
    """zsh completes at a terminal only."""
    shell = needs("zsh")
    functions = tmp_path / "functions"
    functions.mkdir()
    script("zsh").rename(functions / "_specpilot")
    with Terminal([shell, "-f", "-i"], tmp_path, PS1="ready> ") as terminal:
        terminal.read_until("ready> ")
        terminal.type(f"fpath=({functions} $fpath); autoload -Uz compinit; compinit -D -u; print se''t\n")
        terminal.read_until("set\r\n", 30.0)
        terminal.type("specpilot() { printf '<%s>' $@ }\n")
        terminal.type("specpilot gen\t--dty\tbf\t\n")
        terminal.read_until("<generate><--dtype", 30.0)


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "tcsh"])
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
