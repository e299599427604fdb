"""The ``specpilot`` command."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from runtime import __version__
from runtime.errors import UserError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

EPILOG = """examples:
  specpilot generate --bundle outputs/latest/bundle --prompt "Name a river."
  specpilot chat --bundle outputs/latest/bundle
  specpilot COMMAND --help

exit codes: 0 done, 1 a check failed (bench), 2 a mistake in the call or its files, 130 interrupted"""


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from runtime.cli import bench, chat, completion, generate, info, profile, pull, serve, verify

    parser = argparse.ArgumentParser(
        prog="specpilot",
        description="Run a language model with a trained controller of speculative decoding.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specpilot {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what happens to stderr")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (generate, chat, serve, bench, info, verify, profile, pull, completion):
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    command = ""
    try:
        options = make_parser().parse_args(arguments)
        command = f" {options.command}"
        level = logging.INFO if options.verbose else logging.WARNING
        logging.basicConfig(level=level, format="%(levelname)s %(message)s")
        code: int = options.run(options)
        return code
    except UserError as error:
        print(f"specpilot{command}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
