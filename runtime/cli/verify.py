"""``specpilot verify``: is a bundle whole, and does it fit this runtime?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from runtime.bundle import read_bundle
from runtime.cli.common import add_bundle_argument, add_command
from runtime.errors import UserError

EXAMPLES = (
    "specpilot verify outputs/latest/bundle",
    "specpilot verify outputs/latest/bundle --json",
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "verify",
        "check a bundle",
        "Check every hash and field of a bundle, and that this runtime can run it.",
        EXAMPLES,
        {0: "whole, fits this runtime", 2: "not so, or a mistake in the call"},
    )
    add_bundle_argument(parser)
    parser.add_argument(
        "--json", action="store_true", help="print bundle, whole and error as JSON, also if it is not whole"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check; raises on the first fault."""
    try:
        _check(options.bundle)
    except UserError as error:
        if options.json:
            print(_verdict(options.bundle, str(error)))
        raise
    print(_verdict(options.bundle) if options.json else f"{options.bundle}: whole, fits this runtime")
    return 0


def _check(folder: Path) -> None:
    bundle = read_bundle(folder)
    bundle.zoo.verify_files()
    bundle.controller()


def _verdict(folder: Path, error: str | None = None) -> str:
    return json.dumps({"bundle": str(folder), "whole": error is None, "error": error})
