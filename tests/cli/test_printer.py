"""Text that grows: colours only where they are wanted."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence

import pytest

from runtime.cli.printer import Palette, Printer, palette_for, takes_colour
from runtime.core import PLAIN, Decision, Outcome, Phase, Round


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def text(tokens: Sequence[int]) -> str:
    return "".join(f"{token} " for token in tokens)


def outcome(draft: int | None, tokens: tuple[int, ...], accepted: int) -> Outcome:
    decision = PLAIN if draft is None else Decision(draft, 4)
    return Outcome(Phase.DECODE, decision, 0.1, 0.1, round=Round(tokens, 4, accepted), tokens=tokens)


def test_accepted_guesses_have_the_colour_of_their_draft(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(text, palette=Palette(("one", "two")))
    printer.show(Outcome(Phase.ADMIT, PLAIN, 0.1, 0.1, tokens=(1,)))
    printer.show(outcome(1, (2, 3, 4), accepted=2))
    printer.show(outcome(None, (5,), accepted=0))
    printer.finish()
    assert capsys.readouterr().out == "1 \x1b[33m2 \x1b[0m\x1b[33m3 \x1b[0m4 5 \n"


def test_without_a_palette_the_text_is_bare(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(text)
    printer.show(outcome(1, (2, 3, 4), accepted=2))
    printer.finish()
    assert capsys.readouterr().out == "2 3 4 \n"


def test_more_drafts_than_colours_begin_again() -> None:
    palette = Palette(("d",) * 7)
    assert palette.paint("x", 6) == palette.paint("x", 0) != palette.paint("x", 1)


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)],
)
def test_the_user_may_refuse_colour(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, wanted: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    assert takes_colour(Terminal()) is wanted
    assert not takes_colour(io.StringIO())


def test_the_legend_names_the_drafts_where_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out, err = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    assert palette_for(argparse.Namespace(show_source=False), ("one",)) is None
    assert palette_for(argparse.Namespace(show_source=True), ("one",)) is not None
    assert err.getvalue() == "guessed by: \x1b[36mone\x1b[0m\n"
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert palette_for(argparse.Namespace(show_source=True), ("one",)) is None
