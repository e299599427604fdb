"""``specpilot verify``: is a bundle whole, and does it fit this runtime?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from runtime.bundle import read_bundle


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("verify", help="check a bundle", description="Check every hash and field of a bundle.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check; raises on the first fault."""
    bundle = read_bundle(options.bundle)
    bundle.zoo.verify_files()
    bundle.controller()
    print(f"{options.bundle}: whole, fits this runtime")
    return 0
