"""``specpilot generate``: answer a prompt with a bundle."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from runtime.cli import EXIT_INTERRUPTED
from runtime.cli.answering import answer, as_json, make_request
from runtime.cli.common import (
    add_command,
    bundle_option,
    controller_options,
    opened,
    refuse_unless_kv_options,
    session_options,
)
from runtime.cli.counts import describe, table
from runtime.cli.printer import Printer, palette_for, show_source_option
from runtime.cli.text_options import add_text_options, text_settings
from runtime.errors import UserError

EXAMPLES = (
    'specpilot generate --bundle outputs/latest/bundle --prompt "Tell me a story." --stats',
    'specpilot generate --bundle outputs/latest/bundle --prompt "List three rivers." --stop "4." --json',
    'specpilot generate --bundle outputs/latest/bundle --prompt "A name for a cat?" --temperature 0.8 --seed 7',
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "generate",
        "answer a prompt",
        "Answer a prompt with a bundle. The controller decides how long it takes, not what is said: a greedy text is "
        "always the target's own, and a sampled one has the target's own distribution.",
        EXAMPLES,
        {130: "interrupted (Ctrl-C; what was written is printed)"},
    )
    bundle_option(parser)
    parser.add_argument("--prompt", required=True, help="the user's message; - reads it from standard input")
    controller_options(parser)
    parser.add_argument("--stats", action="store_true", help="print counters to stderr when done")
    parser.add_argument("--json", action="store_true", help="print text, token ids, finish_reason and counters as JSON")
    show_source_option(parser)
    session_options(parser)
    add_text_options(parser, max_tokens=128)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the answer, streaming it as it is committed."""
    settings = text_settings(options)
    refuse_unless_kv_options(options)
    text = _prompt(options.prompt)
    with opened(options) as it:
        request = make_request(it.models, it.models.encode(text), settings)
        palette = palette_for(options, it.models.zoo.draft_names)
        printer = None if options.json else Printer(it.models.text, request.stop, palette)
        it.controller.begin_stream()
        started_s = time.perf_counter()
        given = answer(it.session, it.controller, request, printer)
        seconds = time.perf_counter() - started_s
    stats = describe(it.session.counters, len(given.tokens), seconds, it.controller.name)
    if options.json:
        print(json.dumps(as_json(it.models, request, given) | {"stats": stats}))
    elif options.stats:
        print(table(stats), file=sys.stderr)
    if given.cancelled:
        print("interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED if given.cancelled else 0


def _prompt(given: str) -> str:
    """The user's message."""
    try:
        text = sys.stdin.read() if given == "-" else given
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 text ({error}): convert it first") from None
    if not text.strip():
        raise UserError("the prompt is empty: pass some text with --prompt")
    return text
