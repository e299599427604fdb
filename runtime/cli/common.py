"""What several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from runtime.bundle import Bundle
from runtime.control.base import Controller
from runtime.control.factory import NAMES, guard, make_controller
from runtime.core import MemoryConfig
from runtime.engine.dtypes import DTYPES
from runtime.errors import UserError
from runtime.profile import CostModel


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Where the models are."""
    parser.add_argument("--target", help="hub id, folder, GGUF file or pypi: reference (default: the zoo's own)")
    parser.add_argument("--device", default="cpu", help="torch device of the models (default: cpu)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = all cores")


def dtype_option(parser: argparse.ArgumentParser) -> None:
    """What the target runs in."""
    dtypes = ", ".join(DTYPES)
    parser.add_argument("--dtype", default="float32", help=f"what the target runs in: {dtypes} (default: float32)")


def bundle_option(parser: argparse.ArgumentParser) -> None:
    """The bundle to run."""
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the bundle, e.g. outputs/latest/bundle")


def controller_options(parser: argparse.ArgumentParser) -> None:
    """Who decides."""
    parser.add_argument("--controller", default="policy", help=f"who decides: {NAMES} (default: policy)")
    parser.add_argument(
        "--unguarded",
        action="store_true",
        help="let the policy decide alone, without the guard that keeps decoding from falling behind plain decoding",
    )


def open_controller(options: argparse.Namespace, bundle: Bundle, costs: CostModel) -> Controller:
    """Who decides: the policy stands under its guard.

    Raises:
        UserError: If there is no such controller.
    """
    expected = tuple(draft.expected for draft in bundle.zoo.drafts)
    controller = make_controller(options.controller, bundle.zoo.draft_names, costs, expected, bundle.controller)
    if options.controller != "policy" or options.unguarded:
        return controller
    return guard(controller, bundle.zoo.specs(bundle.manifest["memory"]["kv_reserve_tokens"]), costs)


def add_kv_options(group: Any) -> None:
    """Where stored KV lives on."""
    group.add_argument(
        "--kv-folder",
        type=Path,
        metavar="DIR",
        help="keep KV there, and use what earlier calls left (default: nowhere)",
    )
    group.add_argument(
        "--kv-megabytes", type=int, default=1024, metavar="N", help="most that KV takes there (default: 1024)"
    )


def session_arguments(
    bundle: Bundle, costs: CostModel, options: argparse.Namespace
) -> tuple[MemoryConfig, CostModel, int, int]:
    """Memory, costs and rhythm of a session, as the bundle and the options of stored KV say."""
    memory = bundle.manifest["memory"]
    kv_bytes, disk_bytes = bundle.zoo.target.kv_bytes_per_token, options.kv_megabytes * 1_000_000
    config = MemoryConfig(memory["budget_bytes"], memory["workspace_bytes"], kv_bytes, disk_bytes)
    return config, costs, memory["kv_reserve_tokens"], memory["decision_interval"]


def refuse_unless_kv_options(options: argparse.Namespace) -> None:
    """Make sure that KV can be kept there.

    Raises:
        UserError: If the folder is a file, or its size negative.
    """
    if options.kv_megabytes < 0:
        raise UserError(f"--kv-megabytes must be at least 0, got {options.kv_megabytes}")
    if options.kv_folder is not None and options.kv_folder.exists() and not options.kv_folder.is_dir():
        raise UserError(f"--kv-folder {options.kv_folder} is a file: expected a folder, or a name for a new one")
