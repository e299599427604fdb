"""``specpilot chat``: a conversation with a bundle, in the terminal or through a pipe."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runtime.cli import EXIT_USER_ERROR
from runtime.cli.answering import answer, as_json, make_request
from runtime.cli.common import (
    add_command,
    bundle_option,
    controller_options,
    opened,
    refuse_unless_kv_options,
    session_options,
)
from runtime.cli.conversation import Conversation
from runtime.cli.counts import describe, one_line, since, snapshot, table
from runtime.cli.lines import interactive, piped_lines, typed_lines
from runtime.cli.printer import Palette, Printer, palette_for, show_source_option
from runtime.cli.text_options import TextSettings, add_text_options, text_settings
from runtime.errors import UserError

if TYPE_CHECKING:
    from runtime.live import Served

EXAMPLES = (
    "specpilot chat --bundle outputs/latest/bundle --stats",
    'specpilot chat --bundle outputs/latest/bundle --system "Answer in one sentence." --temperature 0.7',
    "printf 'Name a river.\\nAnd another one.\\n' | specpilot chat --bundle outputs/latest/bundle",
)

HELP = """/help         this list
/reset        forget the conversation; the system prompt stays
/stats        counters since the start
/system TEXT  tell the model this first; without TEXT: nothing of your own
/quit         end (so does Ctrl-D)
Ctrl-C stops the answer that is being written; pressed twice it ends the program."""

HINT = "Ctrl-D or /quit ends, /help lists commands"

_COMMAND = re.compile(r"/(\w+)(?:\s+(.*))?")


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "chat",
        "hold a conversation",
        "Hold a conversation with a bundle. Every line is a message; /help lists the commands. The KV of earlier turns "
        "is found again, so a turn costs what is new in it. Input from a pipe is taken line by line; answers go to "
        "standard output, everything else to standard error.",
        EXAMPLES,
        {2: "a mistake in the call or its files, or a message from a pipe could not be answered"},
    )
    bundle_option(parser)
    parser.add_argument("--system", default="", metavar="TEXT", help="what the model is told first")
    controller_options(parser)
    parser.add_argument("--stats", action="store_true", help="print a line of counters to stderr after every answer")
    parser.add_argument("--json", action="store_true", help="print every answer as a line of JSON, as generate does")
    show_source_option(parser)
    session_options(parser)
    add_text_options(parser, max_tokens=512)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Talk until the end of input."""
    settings = text_settings(options)
    refuse_unless_kv_options(options)
    at_terminal = interactive()
    with opened(options) as it:
        conversation = Conversation(it.models.tokenizer, options.system)
        palette = palette_for(options, it.models.zoo.draft_names)
        chat = Chat(it, conversation, settings, palette, options.stats, options.json, at_terminal)
        it.controller.begin_stream()
        if at_terminal:
            note(f"{it.models.zoo.name} answers, {it.controller.name} decides; {HINT}")
        return chat.follow(typed_lines(HINT) if at_terminal else piped_lines())


def note(text: str) -> None:
    """Tell the user something that is no answer."""
    print(text, file=sys.stderr, flush=True)


class Chat:
    """A conversation over one session, whose stored prefixes hold the KV of earlier turns.

    Args:
        it: What answers.
        conversation: What was said so far.
        settings: How an answer is to be.
        palette: Colours of the drafts; None = no colours.
        stats: Whether to tell counters after every answer.
        as_lines: Whether to print an answer as JSON when it is whole, instead of while it grows.
        at_terminal: Whether somebody is there to try again.
    """

    def __init__(
        self,
        it: Served,
        conversation: Conversation,
        settings: TextSettings,
        palette: Palette | None = None,
        stats: bool = False,
        as_lines: bool = False,
        at_terminal: bool = False,
    ) -> None:
        self._it, self._conversation, self._settings = it, conversation, settings
        self._palette, self._stats, self._as_lines, self._at_terminal = palette, stats, as_lines, at_terminal
        self._seconds = 0.0
        self._context = 0  # tokens of the conversation at the end of the last answer

    def follow(self, lines: Iterable[str]) -> int:
        """Take lines until they end or one says so; returns the exit code.

        Raises:
            KeyboardInterrupt: If Ctrl-C ends the program: pressed twice, or where lines come from a pipe.
        """
        code = 0
        for line in lines:
            try:
                if not self._take(line.strip()):
                    break
            except UserError as error:
                note(f"specpilot chat: {error}")
                code = 0 if self._at_terminal else EXIT_USER_ERROR
        return code

    def _take(self, line: str) -> bool:
        """Do what a line asks for; False = end."""
        command = _COMMAND.fullmatch(line)
        if command is None:
            if line:
                self._say(line)
            return True
        name, rest = command.group(1), command.group(2) or ""
        match name:
            case "quit" | "exit":
                return False
            case "help":
                note(HELP)
            case "reset":
                self._conversation.reset()
                note("the conversation begins anew")
            case "stats":
                note(self._totals())
            case "system":
                self._conversation.system = rest
                note("system prompt set; earlier turns stay, /reset forgets them" if rest else "system prompt removed")
            case _:
                raise UserError(f"no command /{name}: /help lists them")
        return True

    def _say(self, text: str) -> None:
        """Answer a message and keep both; a message without any answer is forgotten."""
        models, session, controller = self._it.models, self._it.session, self._it.controller
        prompt_ids = self._conversation.prompt(text)
        room = models.target.context_limit + 1 - len(prompt_ids)
        if room < 1:
            raise UserError(
                f"with this message the conversation has {len(prompt_ids)} tokens, the target's context holds "
                f"{models.target.context_limit}: send a shorter one, or /reset to begin anew; the conversation is kept"
            )
        settings = replace(self._settings, max_tokens=min(self._settings.max_tokens, room))
        request = make_request(models, prompt_ids, settings)
        printer = None if self._as_lines else Printer(models.text, request.stop, self._palette)
        before, started_s = snapshot(session.counters), time.perf_counter()
        given = answer(session, controller, request, printer)
        seconds = time.perf_counter() - started_s
        if session.request is not None:  # broken off, not just cancelled
            raise KeyboardInterrupt
        said = as_json(models, request, given)
        if said["text"].strip():
            self._conversation.keep(text, said["text"])
        self._seconds += seconds
        self._context = len(prompt_ids) + len(given.tokens)
        stats = describe(since(before, session.counters), len(given.tokens), seconds, controller.name)
        self._tell(said, stats, cut_by_context=settings.max_tokens == room)

    def _tell(self, said: dict[str, Any], stats: dict[str, Any], cut_by_context: bool) -> None:
        if self._as_lines:
            print(json.dumps(said | {"stats": stats}), flush=True)
        elif self._stats:
            note(one_line(stats))
        if said["finish_reason"] == "cancelled":
            if not self._at_terminal:
                raise KeyboardInterrupt
            note("stopped; what was written is kept")
        elif said["finish_reason"] == "length" and cut_by_context:
            limit = self._it.models.target.context_limit
            note(f"cut off: the target's context of {limit} tokens is full; /reset begins anew")
        elif said["finish_reason"] == "length" and self._at_terminal:
            note(f"cut off after --max-tokens {self._settings.max_tokens}; say 'go on', or start with a higher number")

    def _totals(self) -> str:
        counters = self._it.session.counters
        if not counters.committed:
            return "nothing was written yet"
        limit = self._it.models.target.context_limit
        stats = describe(counters, counters.committed, self._seconds, self._it.controller.name)
        return table({"turns": len(self._conversation), "context": f"{self._context} of {limit} tokens", **stats})
