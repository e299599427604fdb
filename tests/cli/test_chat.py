"""``specpilot chat``: turns build on each other, their KV is found again, and no slip of the user's ends it."""

from __future__ import annotations

import builtins
import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runtime.cli import main
from runtime.cli.conversation import Conversation
from runtime.cli.lines import typed_lines
from runtime.errors import UserError
from tests.cli.interrupting import interrupt_at
from tests.tiny_zoo import TinyZoo

FIRST = "w5 w17 w3 w44 w9 w17 w3 w44 w30 w31 w32 w33"
SECOND = "w6 w18 w4 w45 w10 w18 w4 w45 w29 w28 w27 w26"
CONTEXT = 256
"""Tokens that the tiny target can read."""


class Talk(NamedTuple):
    """How a conversation went."""

    code: int
    out: str
    err: str

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Of ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def texts(self) -> list[str]:
        return [answer["text"] for answer in self.answers]

    def stat(self, name: str) -> list[int]:
        """A counter of every answer."""
        return [answer["stats"][name] for answer in self.answers]


@pytest.fixture
def talk(tiny_zoo: TinyZoo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Talk]:
    """Says lines through a pipe."""

    def say(*lines: str, options: tuple[str, ...] = ("--json",), controller: str = "plain_reuse") -> Talk:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        chosen = ["--controller", controller, "--threads", "1", "--max-tokens", "24", *options]
        code = main(["chat", "--bundle", str(tiny_zoo.bundle), *chosen])
        return Talk(code, *capsys.readouterr())

    return say


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Pretends that somebody types these lines, then Ctrl-D."""

    def typing(lines: list[str]) -> None:
        left = iter(lines)

        def typed(_: str) -> str:
            line = next(left, None)
            if line is None:
                raise EOFError
            return line

        monkeypatch.setattr("runtime.cli.chat.interactive", lambda: True)
        monkeypatch.setattr(builtins, "input", typed)

    return typing


# -- turns -------------------------------------------------------------------------------------------------------


def test_the_kv_of_earlier_turns_is_used_again(talk: Callable[..., Talk]) -> None:
    said = talk(FIRST, SECOND, FIRST, SECOND)
    assert said.code == 0 and len(said.answers) == 4
    hits = said.stat("kv_hit_tokens")
    assert hits[0] == 0 and hits[0] < hits[1] < hits[2] < hits[3]
    assert all(hit % 32 == 0 for hit in hits)
    forgetful = talk(FIRST, SECOND, FIRST, SECOND, controller="plain")
    assert forgetful.stat("kv_hit_tokens") == [0, 0, 0, 0]
    assert forgetful.texts == said.texts
    whole = forgetful.stat("prefill_tokens")
    assert [a + b for a, b in zip(hits, said.stat("prefill_tokens"), strict=True)] == whole
    assert whole == sorted(whole)


@pytest.mark.exact
def test_a_turn_says_what_the_target_says_to_the_whole_conversation(talk: Callable[..., Talk]) -> None:
    plain = talk(FIRST, SECOND, FIRST, controller="plain")
    for controller in ("policy", "static:one:4", "static:lookup:4", "rakv_asd"):
        assert talk(FIRST, SECOND, FIRST, controller=controller).texts == plain.texts, controller


def test_a_turn_builds_on_the_turns_before(talk: Callable[..., Talk]) -> None:
    said = talk(FIRST, FIRST, "/reset", FIRST, controller="plain")
    first, second, again = said.stat("prefill_tokens")
    assert second > first + 12 and again == first
    assert said.texts[2] == said.texts[0]
    assert "the conversation begins anew" in said.err


def test_what_the_model_is_told_first_is_part_of_the_prompt(talk: Callable[..., Talk]) -> None:
    said = talk(FIRST, "/reset", "/system w7 w8 w9", FIRST, "/reset", "/system", FIRST, controller="plain")
    first, told, removed = said.stat("prefill_tokens")
    assert (told, removed) == (first + 3, first)
    option = talk(FIRST, options=("--json", "--system", "w7 w8 w9"), controller="plain")
    assert option.answers[0]["tokens"] == said.answers[1]["tokens"]


def test_the_answer_streams_and_counters_go_to_stderr(talk: Callable[..., Talk]) -> None:
    text = talk(FIRST, "", "  ", SECOND).texts
    said = talk(FIRST, SECOND, "/stats", options=("--stats",))
    assert said.out == "".join(f"{each}\n" for each in text)
    lines = said.err.splitlines()
    assert lines[0].startswith("[24 tokens, ") and lines[0].endswith("KV of 0 tokens reused]")
    stats = dict(line.split(maxsplit=1) for line in lines[2:])
    assert (stats["turns"], stats["tokens"], stats["admitted"]) == ("2", "48", "2")
    assert stats["context"] == f"73 of {CONTEXT} tokens"  # one of the template's, twice 12 and 24


def test_counters_before_the_first_answer_and_help(talk: Callable[..., Talk]) -> None:
    said = talk("/stats", "/help")
    assert (said.code, said.out) == (0, "")
    assert "nothing was written yet" in said.err and "/system TEXT" in said.err


def test_an_answer_may_end_at_a_stop_string(talk: Callable[..., Talk]) -> None:
    words = talk(FIRST).texts[0].split()
    answer = talk(FIRST, options=("--json", "--stop", words[3])).answers[0]
    assert answer["finish_reason"] == "stop" and words[3] not in answer["text"]


# -- what goes wrong ---------------------------------------------------------------------------------------------


def test_quit_ends_it(talk: Callable[..., Talk]) -> None:
    assert len(talk(FIRST, "/quit", SECOND).answers) == 1


def test_an_unknown_command_is_no_message(talk: Callable[..., Talk]) -> None:
    said = talk("/undo that", FIRST)
    assert said.code == 2 and "specpilot chat: no command /undo: /help lists them" in said.err
    assert len(said.answers) == 1


def test_a_path_is_a_message(talk: Callable[..., Talk]) -> None:
    said = talk("/w5/w6")
    assert said.code == 0 and len(said.answers) == 1


def test_a_message_too_many_leaves_the_conversation_as_it_was(talk: Callable[..., Talk]) -> None:
    said = talk(FIRST, "w5 " * 300, SECOND, controller="plain")
    assert said.code == 2
    assert "the target's context holds 256: send a shorter one, or /reset" in said.err
    assert said.texts == talk(FIRST, SECOND, controller="plain").texts


def test_an_answer_ends_where_the_context_does(talk: Callable[..., Talk]) -> None:
    message = " ".join(["w5"] * (CONTEXT - 9))  # the template adds one
    said = talk(message)
    answer = said.answers[0]
    assert answer["stats"]["prefill_tokens"] + len(answer["tokens"]) == CONTEXT + 1
    assert len(answer["tokens"]) == 9 and answer["finish_reason"] == "length"
    assert f"the target's context of {CONTEXT} tokens is full; /reset" in said.err


def test_input_that_is_not_text_is_refused(tiny_zoo: TinyZoo, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    assert main(["chat", "--bundle", str(tiny_zoo.bundle), "--threads", "1"]) == 2
    assert "standard input is not UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["--stop", ""], "stop strings must not be empty"),
        (["--controller", "oracle"], "unknown controller 'oracle'"),
        (["--kv-megabytes", "-1"], "--kv-megabytes must be at least 0"),
    ],
)
def test_a_bad_option_is_refused(tiny_zoo: TinyZoo, capsys: Any, options: list[str], message: str) -> None:
    assert main(["chat", "--bundle", str(tiny_zoo.bundle), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith("specpilot chat: ") and message in err


def test_kv_on_disk_is_found_by_the_next_chat(talk: Callable[..., Talk], tmp_path: Path) -> None:
    options = ("--json", "--kv-folder", str(tmp_path / "kv"))
    assert talk(FIRST, SECOND, options=options).stat("kv_disk_tokens") == [0, 0]
    assert talk(FIRST, SECOND, options=options).stat("kv_disk_tokens")[0] >= 12  # all of the first prompt but its end


class Template:
    """A tokenizer whose template refuses what some models' templates refuse."""

    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template

    def apply_chat_template(self, turns: list[dict[str, str]], **_: object) -> dict[str, list[int]]:
        if turns[0]["role"] == "system":
            raise ValueError("System role not supported")
        return {"input_ids": [len(turn["content"]) for turn in turns]}


def test_a_target_without_a_template_cannot_chat() -> None:
    with pytest.raises(UserError, match="no chat template, so it cannot hold a conversation"):
        Conversation(Template(None))


def test_a_template_that_refuses_is_told() -> None:
    conversation = Conversation(Template("x"), system="be brief")
    with pytest.raises(UserError, match=r"cannot render this conversation \(System role not supported\)"):
        conversation.prompt("hello")
    conversation.system = ""
    conversation.keep("hello", "hi!")
    assert (conversation.prompt("well"), len(conversation)) == ([5, 3, 4], 1)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_answer_and_not_the_program(
    talk: Callable[..., Talk], at_terminal: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = talk(FIRST, controller="plain").texts[0]
    handler = signal.getsignal(signal.SIGINT)
    at_terminal([FIRST, SECOND])
    interrupt_at(5, 1, monkeypatch)
    said = talk(controller="plain")
    first, second = said.answers
    assert said.code == 0 and "stopped; what was written is kept" in said.err
    assert first["finish_reason"] == "cancelled" and first["text"] == " ".join(whole.split()[:4])
    assert second["stats"]["prefill_tokens"] == first["stats"]["prefill_tokens"] + 4 + 12
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_message_without_any_answer_is_forgotten(
    talk: Callable[..., Talk], at_terminal: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = talk(SECOND, controller="plain").answers[0]
    at_terminal([FIRST, SECOND])
    interrupt_at(1, 1, monkeypatch)
    said = talk(controller="plain")
    assert said.answers[0]["tokens"] == []
    assert said.answers[1]["tokens"] == alone["tokens"]


@pytest.mark.parametrize(("times", "terminal"), [(2, True), (1, False)])
def test_ctrl_c_twice_or_on_a_pipe_ends_the_program(
    talk: Callable[..., Talk],
    at_terminal: Callable[[list[str]], None],
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    terminal: bool,
) -> None:
    if terminal:
        at_terminal([FIRST, SECOND])
    interrupt_at(5, times, monkeypatch)
    said = talk(FIRST, SECOND, options=(), controller="plain")
    assert said.code == 130 and said.err.endswith("interrupted\n")
    assert len(said.out.splitlines()) == 1


def test_ctrl_c_at_the_prompt_throws_the_line_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: Iterator[str | BaseException] = iter(["one", KeyboardInterrupt(), "two", EOFError()])

    def typed(_: str) -> str:
        event = next(events)
        if isinstance(event, BaseException):
            raise event
        return event

    monkeypatch.setattr(builtins, "input", typed)
    assert list(typed_lines("a hint")) == ["one", "two"]
    assert capsys.readouterr().err == "\na hint\n\n"
