"""What several commands share."""

from __future__ import annotations

import argparse
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.bundle import Bundle, read_bundle
from runtime.cli.running import engine_option, running
from runtime.control.base import Controller
from runtime.control.factory import NAMES, guard, make_controller
from runtime.core import MemoryConfig
from runtime.engine.dtypes import AUTO_DTYPE, DTYPES
from runtime.errors import UserError
from runtime.files import write_json
from runtime.importing import importing
from runtime.profile import CostModel

if TYPE_CHECKING:
    from runtime.live import Served

EXIT_CODES = {0: "done", 2: "a mistake in the call or its files", 130: "interrupted"}
"""What every command's exit status means, unless it says otherwise."""

WIDTH = 100
"""Columns of help text that is wrapped here."""


def add_command(
    commands: Any,
    name: str,
    short: str,
    description: str,
    examples: Sequence[str],
    exits: Mapping[int, str] | None = None,
) -> argparse.ArgumentParser:
    """Register a command whose help ends with examples and exit codes.

    Args:
        commands: Where the program keeps its commands.
        name: What the user types.
        short: A few words, for the list of commands.
        description: What it does, for its own help.
        examples: Calls, one a line.
        exits: Exit codes that are not those of ``EXIT_CODES``.
    """
    codes = sorted({**EXIT_CODES, **(exits or {})}.items())
    told = textwrap.fill("exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in codes), WIDTH)
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=short,
        description=textwrap.fill(description, WIDTH),
        epilog="\n".join(["examples:", *(f"  {line}" for line in examples), "", told]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Where the models are."""
    parser.add_argument("--target", help="hub id, folder, GGUF file or pypi: reference (default: the zoo's own)")
    parser.add_argument("--device", default="cpu", help="torch device of the models (default: cpu)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = all cores")
    engine_option(parser)


def dtype_option(parser: argparse.ArgumentParser) -> None:
    """What the target runs in."""
    parser.add_argument(
        "--dtype",
        default=AUTO_DTYPE,
        help=f"what the target runs in: {', '.join(DTYPES)} (default: auto, as the bundle's costs were measured)",
    )


def bundle_option(parser: argparse.ArgumentParser) -> None:
    """The bundle to run."""
    parser.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="folder of the bundle, e.g. outputs/latest/bundle"
    )


def add_bundle_argument(parser: argparse.ArgumentParser) -> None:
    """The bundle to look at."""
    parser.add_argument("bundle", type=Path, metavar="DIR", help="folder of the bundle")


def controller_options(parser: argparse.ArgumentParser) -> None:
    """Who decides."""
    parser.add_argument("--controller", default="policy", help=f"who decides: {NAMES} (default: policy)")
    unguarded_option(parser)


def unguarded_option(parser: argparse.ArgumentParser) -> None:
    """Whether the policy stands under its guard."""
    parser.add_argument(
        "--unguarded",
        action="store_true",
        help="let the policy decide alone, without the guard that keeps decoding from falling behind plain decoding",
    )


def open_controller(options: argparse.Namespace, bundle: Bundle, costs: CostModel) -> Controller:
    """Who decides, as the options say.

    Raises:
        UserError: If there is no such controller.
    """
    return controller_named(options.controller, bundle, costs, options.unguarded)


def controller_named(name: str, bundle: Bundle, costs: CostModel, unguarded: bool = False) -> Controller:
    """Who decides, by name: the policy stands under its guard unless it is ``unguarded``.

    Raises:
        UserError: If there is no such controller.
    """
    expected = tuple(draft.expected for draft in bundle.zoo.drafts)
    controller = make_controller(name, bundle.zoo.draft_names, costs, expected, bundle.controller)
    if name != "policy" or unguarded:
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
    bundle: Bundle, costs: CostModel, options: argparse.Namespace | None = None
) -> tuple[MemoryConfig, CostModel, int, int]:
    """Memory, costs and rhythm of a session, as the bundle and the options of stored KV say; without them no disk."""
    memory = bundle.manifest["memory"]
    kv_bytes, disk_bytes = bundle.zoo.target.kv_bytes_per_token, options.kv_megabytes * 1_000_000 if options else 0
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


def write_out(path: Path, data: Mapping[str, Any]) -> None:
    """Write what ``--out`` asks for.

    Raises:
        UserError: If it cannot be written there.
    """
    try:
        write_json(path, data)
    except OSError as error:
        raise _not_writable(path, error) from None


def refuse_unless_writable(path: Path) -> None:
    """Before minutes are spent on what ``--out`` asks for.

    Raises:
        UserError: If nothing can be written there.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _not_writable(path, error) from None


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"--out {path} cannot be written ({error}): expected a name for a new file")


def opener(options: argparse.Namespace, bundle: Bundle) -> Callable[[], AbstractContextManager[Served]]:
    """Settle what the options of models, controller and stored KV name.

    Returns:
        Opens it, in the thread that will own it.

    Raises:
        UserError: If something of it is damaged, missing or cannot be used; opening may raise it too.
    """
    bundle.zoo.verify_files()
    engine, dtype, costs = running(options, bundle)
    controller = open_controller(options, bundle, costs)
    arguments = session_arguments(bundle, costs, options)

    @contextmanager
    def opened() -> Iterator[Served]:
        with importing():
            from runtime.live import Served, open_models, open_session  # here, because the import takes seconds

        models = open_models(bundle.zoo, options.target, options.device, options.threads, dtype=dtype, engine=engine)
        with open_session(models, *arguments, kv_folder=options.kv_folder) as session:
            yield Served(models, session, controller)

    return opened


def opened(options: argparse.Namespace) -> AbstractContextManager[Served]:
    """Check what ``opener`` needs, and open it at once."""
    return opener(options, read_bundle(options.bundle))()


def session_options(parser: argparse.ArgumentParser) -> None:
    """What is answered with: models, their format, and stored KV."""
    add_model_options(parser)
    dtype_option(parser)
    add_kv_options(parser.add_argument_group("stored KV"))
