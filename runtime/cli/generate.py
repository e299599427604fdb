"""``specpilot generate``: answer a prompt with a bundle."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from runtime.bundle import Bundle, read_bundle
from runtime.cli.common import add_model_options, bundle_option
from runtime.control.base import Controller
from runtime.control.factory import NAMES, make_controller
from runtime.core import MemoryConfig, Phase, Request
from runtime.errors import UserError
from runtime.live import LiveModels, open_models, open_session
from runtime.profile import CostModel
from runtime.session import DecodeSession


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "generate",
        help="answer a prompt",
        description="Answer a prompt with a bundle. The text does not depend on the controller, only the time does.",
        epilog='example: specpilot generate --bundle outputs/latest/bundle --prompt "Tell me a story." --stats',
    )
    bundle_option(parser)
    parser.add_argument("--prompt", required=True, help="the user's message; - reads it from standard input")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens to write (default: 128)")
    parser.add_argument("--controller", default="policy", help=f"who decides: {NAMES} (default: policy)")
    parser.add_argument("--stats", action="store_true", help="print counters to stderr when done")
    parser.add_argument("--json", action="store_true", help="print text, token ids and counters as JSON")
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the answer, streaming it as it is committed."""
    if options.max_tokens < 1:
        raise UserError(f"--max-tokens must be at least 1, got {options.max_tokens}")
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not text.strip():
        raise UserError("the prompt is empty: pass some text with --prompt")
    bundle = read_bundle(options.bundle)
    bundle.zoo.verify_files()
    costs = CostModel(bundle.profile, bundle.zoo.draft_names)
    expected = tuple(draft.expected for draft in bundle.zoo.drafts)
    controller = make_controller(options.controller, bundle.zoo.draft_names, costs, expected, bundle.controller)
    models = open_models(bundle.zoo, options.target, options.device, options.threads)
    request = make_request(models, text, options.max_tokens)
    with open_session(models, *session_arguments(bundle, costs)) as session:
        started_s = time.perf_counter()
        tokens = answer(session, controller, request, None if options.json else Printer(models))
        seconds = time.perf_counter() - started_s
    stats = describe(session, tokens, seconds, controller.name)
    if options.json:
        print(json.dumps({"text": models.decode(tokens), "tokens": tokens, "stats": stats}))
    elif options.stats:
        print("\n".join(f"{name:<18} {value}" for name, value in stats.items()), file=sys.stderr)
    return 0


def session_arguments(bundle: Bundle, costs: CostModel) -> tuple[MemoryConfig, CostModel, int, int]:
    """Memory, costs and rhythm of a session as the bundle says."""
    memory = bundle.manifest["memory"]
    config = MemoryConfig(memory["budget_bytes"], memory["workspace_bytes"], bundle.zoo.target.kv_bytes_per_token)
    return config, costs, memory["kv_reserve_tokens"], memory["decision_interval"]


def make_request(models: LiveModels, text: str, max_tokens: int) -> Request:
    """A request for one user message."""
    return Request("prompt", tuple(models.encode(text)), max_tokens, frozenset(models.zoo.target.eos_ids))


class Printer:
    """Prints text as tokens are committed; holds back a character that is not complete yet."""

    def __init__(self, models: LiveModels) -> None:
        self._models = models
        self._printed = ""

    def show(self, tokens: list[int], last: bool = False) -> None:
        """Print what is new in the text of ``tokens``."""
        text = self._models.decode(tokens)
        if last or not text.endswith("\N{REPLACEMENT CHARACTER}"):
            print(text[len(self._printed) :], end="\n" if last else "", flush=True)
            self._printed = text


def answer(session: DecodeSession, controller: Controller, request: Request, printer: Printer | None) -> list[int]:
    """Run one request to its end; the committed token ids."""
    tokens: list[int] = []
    controller.begin_stream()
    session.start([request])
    finished = False
    while not finished:
        observation = session.observe()
        outcome = session.advance(controller.decide(observation))
        controller.learn(outcome)
        tokens += outcome.tokens
        finished = outcome.stream_finished
        if printer is not None and outcome.phase is not Phase.COMPLETE:
            printer.show(tokens)
    if printer is not None:
        printer.show(tokens, last=True)
    return tokens


def describe(session: DecodeSession, tokens: list[int], seconds: float, name: str) -> dict[str, Any]:
    """Counters of a finished session."""
    total = session.counters
    return {
        "controller": name,
        "tokens": len(tokens),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(len(tokens) / seconds, 2),
        "ttft_s": round(total.ttft_s[0], 3),
        "rounds": total.rounds,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "loads": total.loads,
        "stall_s": round(total.stall_s, 4),
        "guard_forwards": total.guard_forwards,
        "peak_budget_mb": round(total.peak_budget_bytes / 1e6, 1),
    }
