"""``specpilot bench``: how fast is a bundle on this device, and is its text the target's own?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.bundle import Bundle, library_versions, read_bundle
from runtime.cli import EXIT_FAILED
from runtime.cli.answering import make_request
from runtime.cli.benching.intervals import RESAMPLES
from runtime.cli.benching.machine import machine_facts, peak_rss_bytes
from runtime.cli.benching.prompts import Prompt, read_prompts
from runtime.cli.benching.report import as_json, heading, table, told
from runtime.cli.benching.runs import Run, Track, measure, progress_bar, warm_up
from runtime.cli.benching.summary import PLAIN, Difference, differences, summarise
from runtime.cli.common import (
    add_command,
    add_model_options,
    bundle_option,
    controller_named,
    dtype_option,
    refuse_unless_writable,
    unguarded_option,
    write_out,
)
from runtime.cli.running import running
from runtime.cli.text_options import TextSettings, refuse_unless_positive
from runtime.control.factory import NAMES
from runtime.core import Request
from runtime.errors import UserError
from runtime.importing import importing
from runtime.threads import usable_threads

if TYPE_CHECKING:
    from runtime.live import LiveModels

EXAMPLES = (
    "specpilot bench --bundle outputs/latest/bundle",
    "specpilot bench --bundle outputs/latest/bundle --controllers policy,static:generalist:4,rakv_asd --repeat 3",
    "specpilot bench --bundle outputs/latest/bundle --prompts mine.txt --max-tokens 128 --out bench.json",
)

MOST_TOLD = 5
"""Differing texts that are told one by one."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "bench",
        "measure a bundle's speed here",
        "Answer prompts on this device under several controllers, plain decoding always among them, and compare their "
        "speed. Controllers take turns at every prompt; every pass begins with fresh controllers and empty memory. "
        "Texts are greedy and have to be plain decoding's own, token for token.",
        EXAMPLES,
        {1: "a text differs from plain decoding's"},
    )
    bundle_option(parser)
    parser.add_argument(
        "--controllers",
        default="policy,plain,stacked",
        metavar="NAMES",
        help=f"who decides, commas between: {NAMES} (default: policy,plain,stacked; plain is always added)",
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts, one a line (default: twelve built-in)")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="most tokens an answer (default: 64)")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="passes over all prompts (default: 2)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there, too")
    unguarded_option(parser)
    add_model_options(parser)
    dtype_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, tell, and say whether all texts were identical."""
    prompts = _prompts(options)
    bundle = read_bundle(options.bundle)
    bundle.zoo.verify_files()
    engine, dtype, costs = running(options, bundle)
    names = _names(options.controllers)
    for name in names:
        controller_named(name, bundle, costs)  # refuses an unknown one before the target is loaded
    with importing():
        from runtime.live import open_models  # here, because the import takes seconds

    models = open_models(bundle.zoo, options.target, options.device, options.threads, dtype=dtype, engine=engine)
    requests = _requests(models, prompts, options.max_tokens)
    runs = _measure(Track(models, bundle, costs, options.unguarded), names, requests, options.repeat)
    summaries, wrong = summarise(runs, names), differences(runs)
    facts = _facts(options, bundle, models)
    result = as_json(facts, prompts, summaries, runs)
    print(json.dumps(result, indent=1) if options.json else f"{heading(facts, len(runs))}\n\n{table(summaries)}")
    if options.out:
        write_out(options.out, result)
    if wrong:
        print(_complaint(wrong, len(runs), prompts), file=sys.stderr)
    return EXIT_FAILED if wrong else 0


def _prompts(options: argparse.Namespace) -> tuple[Prompt, ...]:
    refuse_unless_positive("--max-tokens", options.max_tokens)
    refuse_unless_positive("--repeat", options.repeat)
    if options.out is not None:
        refuse_unless_writable(options.out)
    return read_prompts(options.prompts)


def _names(given: str) -> tuple[str, ...]:
    """Controllers, each once, plain among them.

    Raises:
        UserError: If none is named.
    """
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise UserError(f"--controllers {given!r} names nobody: expected some of {NAMES}, commas between")
    return names if PLAIN in names else (*names, PLAIN)


def _requests(models: LiveModels, prompts: Sequence[Prompt], max_tokens: int) -> list[Request]:
    """A greedy request for every prompt.

    Raises:
        UserError: If one does not fit the target's context.
    """
    settings = TextSettings(max_tokens)
    requests = [make_request(models, models.encode(prompt.text), settings) for prompt in prompts]
    limit = models.target.context_limit + 1
    for number, request in enumerate(requests, 1):
        if len(request.prompt_ids) + max_tokens > limit:
            raise UserError(
                f"prompt {number} has {len(request.prompt_ids)} tokens, with --max-tokens {max_tokens} more than the "
                f"{limit} that the target's context holds: shorten one of them"
            )
    return requests


def _measure(track: Track, names: Sequence[str], requests: Sequence[Request], repeat: int) -> list[Run]:
    with progress_bar(repeat * len(requests) * len(names)) as bar:
        warm_up(track, requests[0])
        return measure(track, names, requests, repeat, bar.update)


def _facts(options: argparse.Namespace, bundle: Bundle, models: LiveModels) -> dict[str, Any]:
    """What was measured, on what, and how."""
    profile = bundle.profile
    return {
        "bundle": {
            "folder": str(bundle.folder),
            "policy_sha256": bundle.policy_sha256,
            "zoo": bundle.zoo.name,
            "target": models.zoo.target.fingerprint,
            "profile": {"device": profile.device, "simulated": profile.simulated, "threads": profile.threads},
        },
        "machine": machine_facts(options.device, options.threads or usable_threads(), models.target.dtype_name),
        "versions": library_versions("torch", "transformers", "onnxruntime", "numpy"),
        "settings": {
            "max_tokens": options.max_tokens,
            "repeat": options.repeat,
            "unguarded": options.unguarded,
            "resamples": RESAMPLES,
        },
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _complaint(wrong: Sequence[Difference], answers: int, prompts: Sequence[Prompt]) -> str:
    """Which texts differ."""
    told_ones = "\n".join(f"  {told(each, prompts)}" for each in wrong[:MOST_TOLD])
    more = f"\n  and {len(wrong) - MOST_TOLD} more" if len(wrong) > MOST_TOLD else ""
    return f"specpilot bench: {len(wrong)} of {answers} texts differ from plain decoding's:\n{told_ones}{more}"
