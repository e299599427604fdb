"""``specpilot generate``: answer a prompt with a bundle."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from runtime.bundle import read_bundle
from runtime.cli import EXIT_INTERRUPTED
from runtime.cli.common import (
    add_kv_options,
    add_model_options,
    bundle_option,
    controller_options,
    dtype_option,
    open_controller,
    refuse_unless_kv_options,
    session_arguments,
)
from runtime.cli.printer import Printer
from runtime.control.base import Controller
from runtime.core import GREEDY, Phase, Request, Sampling
from runtime.decoding.stopping import has_ended, refuse_unless_stops, trim
from runtime.errors import UserError
from runtime.live import LiveModels, open_models, open_session
from runtime.profile import CostModel
from runtime.session import DecodeSession

EXAMPLES = """examples:
  specpilot generate --bundle outputs/latest/bundle --prompt "Tell me a story." --stats
  specpilot generate --bundle outputs/latest/bundle --prompt "List three rivers." --stop "4." --json
  specpilot generate --bundle outputs/latest/bundle --prompt "A name for a cat?" --temperature 0.8 --top-p 0.95 --seed 7

exit codes: 0 done, 2 a mistake in the call or its files, 130 interrupted (Ctrl-C; what was written is printed)"""


class Answer(NamedTuple):
    """What came of a request.

    Attributes:
        tokens: Committed token ids.
        cancelled: Whether it was interrupted before its end.
    """

    tokens: list[int]
    cancelled: bool


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "generate",
        help="answer a prompt",
        description="Answer a prompt with a bundle. The controller decides how long it takes, not what is said: a "
        "greedy text is always the target's own, and a sampled one has the target's own distribution.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bundle_option(parser)
    parser.add_argument("--prompt", required=True, help="the user's message; - reads it from standard input")
    controller_options(parser)
    parser.add_argument("--stats", action="store_true", help="print counters to stderr when done")
    parser.add_argument("--json", action="store_true", help="print text, token ids, finish_reason and counters as JSON")
    add_model_options(parser)
    dtype_option(parser)
    _add_end_options(parser.add_argument_group("where the text ends"))
    add_kv_options(parser.add_argument_group("stored KV"))
    _add_sampling_options(parser.add_argument_group("how tokens are chosen (default: the likeliest, always)"))
    parser.set_defaults(run=run)


def _add_end_options(group: Any) -> None:
    group.add_argument("--max-tokens", type=int, default=128, help="most tokens to write (default: 128)")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times"
    )


def _add_sampling_options(group: Any) -> None:
    for flag, kind, default, text in (
        ("--temperature", float, GREEDY.temperature, "divides the logits; 0 = greedy"),
        ("--top-k", int, GREEDY.top_k, "only the k likeliest tokens; 0 = off"),
        ("--top-p", float, GREEDY.top_p, "only the likeliest tokens that reach this probability together; 1 = off"),
        ("--min-p", float, GREEDY.min_p, "only tokens at least this many times as likely as the likeliest; 0 = off"),
        (
            "--repetition-penalty",
            float,
            GREEDY.repetition_penalty,
            "above 1: repeating becomes less likely; 1 = off",
        ),
    ):
        group.add_argument(flag, type=kind, default=default, metavar="X", help=f"{text} (default: {default:g})")
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="the same seed and the same decisions give the same text; a policy that looks at loads in progress may "
        "decide differently each time (default: a fresh one)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the answer, streaming it as it is committed."""
    sampling, text = _checked(options)
    bundle = read_bundle(options.bundle)
    bundle.zoo.verify_files()
    costs = CostModel(bundle.profile, bundle.zoo.draft_names)
    controller = open_controller(options, bundle, costs)
    models = open_models(bundle.zoo, options.target, options.device, options.threads, dtype=options.dtype)
    request = make_request(models, text, options.max_tokens, sampling, tuple(options.stop))
    printer = None if options.json else Printer(models.text, request.stop)
    with open_session(models, *session_arguments(bundle, costs, options), kv_folder=options.kv_folder) as session:
        started_s = time.perf_counter()
        given = answer(session, controller, request, printer)
        seconds = time.perf_counter() - started_s
    stats = describe(session, given.tokens, seconds, controller.name)
    if options.json:
        print(json.dumps(as_json(models, request, given) | {"stats": stats}))
    elif options.stats:
        print("\n".join(f"{name:<18} {value}" for name, value in stats.items()), file=sys.stderr)
    if given.cancelled:
        print("interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED if given.cancelled else 0


def _checked(options: argparse.Namespace) -> tuple[Sampling, str]:
    """Sampling and prompt, before anything is loaded."""
    if options.max_tokens < 1:
        raise UserError(f"--max-tokens must be at least 1, got {options.max_tokens}")
    refuse_unless_kv_options(options)
    refuse_unless_stops(options.stop)
    sampling = Sampling(
        repetition_penalty=options.repetition_penalty,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
    )
    try:
        text = sys.stdin.read() if options.prompt == "-" else options.prompt
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 text ({error}): convert it first") from None
    if not text.strip():
        raise UserError("the prompt is empty: pass some text with --prompt")
    return sampling, text


def make_request(
    models: LiveModels, text: str, max_tokens: int, sampling: Sampling = GREEDY, stop: tuple[str, ...] = ()
) -> Request:
    """A request for one user message."""
    eos_ids = frozenset(models.zoo.target.eos_ids)
    return Request("prompt", tuple(models.encode(text)), max_tokens, eos_ids, sampling=sampling, stop=stop)


def answer(session: DecodeSession, controller: Controller, request: Request, printer: Printer | None) -> Answer:
    """Run one request to its end, or to the first Ctrl-C."""
    tokens: list[int] = []
    cancelled = finished = False
    controller.begin_stream()
    session.start([request])
    with _cancelled_by_interrupt(session):
        try:
            while not finished:
                outcome = session.advance(controller.decide(session.observe()))
                controller.learn(outcome)
                tokens += outcome.tokens
                cancelled |= outcome.cancelled
                finished = outcome.stream_finished
                if printer is not None and outcome.phase is not Phase.COMPLETE:
                    printer.show(outcome.tokens)
        except KeyboardInterrupt:  # the second one, or one that no handler could take
            cancelled = True
    if printer is not None:
        printer.finish()
    return Answer(tokens, cancelled)


@contextmanager
def _cancelled_by_interrupt(session: DecodeSession) -> Iterator[None]:
    """Let the first Ctrl-C cancel the request; the second one interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return

    def cancel(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        session.cancel()

    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def as_json(models: LiveModels, request: Request, given: Answer) -> dict[str, Any]:
    """Text (without the stop string), token ids, and why the text ended: stop, length or cancelled."""
    text, tokens = models.decode(given.tokens), given.tokens
    stopped = has_ended(tokens, request.eos_ids, text, request.stop)
    reason = "cancelled" if given.cancelled else "stop" if stopped else "length"
    return {"text": trim(text, request.stop), "tokens": tokens, "finish_reason": reason}


def describe(session: DecodeSession, tokens: list[int], seconds: float, name: str) -> dict[str, Any]:
    """Counters of a finished session, see ``runtime.core.Counters``; committed = admitted + accepted + corrections."""
    total = session.counters
    return {
        "controller": name,
        "tokens": len(tokens),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(len(tokens) / seconds, 2),
        "ttft_s": round(total.ttft_s[0], 3) if total.ttft_s else None,
        "rounds": total.rounds,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "acceptance_rate": round(total.acceptance_rate, 4),
        "corrections": total.corrections,
        "admitted": total.admitted,
        "committed": total.committed,
        "prefill_tokens": total.prefill_tokens,
        "kv_hit_tokens": total.kv_hit_tokens,
        "kv_disk_tokens": total.kv_disk_tokens,
        "kv_saved_s": round(total.kv_saved_s, 4),
        "loads": total.loads,
        "stall_s": round(total.stall_s, 4),
        "guard_forwards": total.guard_forwards,
        "peak_budget_mb": round(total.peak_budget_bytes / 1e6, 1),
    }
