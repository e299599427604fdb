"""How an answer is to be: where it ends and how its tokens are chosen. Shared by the commands that write one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from runtime.core import GREEDY, Sampling
from runtime.decoding.stopping import refuse_unless_stops
from runtime.errors import UserError


@dataclass(frozen=True)
class TextSettings:
    """How an answer is to be.

    Attributes:
        max_tokens: Most tokens of an answer.
        sampling: How tokens are chosen.
        stop: Strings that end it.
    """

    max_tokens: int
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()


def add_text_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """Where the text ends and how tokens are chosen.

    Args:
        parser: Where the options are added.
        max_tokens: Default of ``--max-tokens``.
    """
    _add_end_options(parser.add_argument_group("where the text ends"), max_tokens)
    _add_sampling_options(parser.add_argument_group("how tokens are chosen (default: the likeliest, always)"))


def text_settings(options: argparse.Namespace) -> TextSettings:
    """The options, checked before anything is loaded.

    Raises:
        UserError: If one of them cannot be.
    """
    refuse_unless_positive("--max-tokens", options.max_tokens)
    refuse_unless_stops(options.stop)
    sampling = Sampling(
        repetition_penalty=options.repetition_penalty,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
    )
    return TextSettings(options.max_tokens, sampling, tuple(options.stop))


def refuse_unless_positive(flag: str, number: int) -> None:
    """Make sure that a count is one.

    Raises:
        UserError: If it is below 1.
    """
    if number < 1:
        raise UserError(f"{flag} must be at least 1, got {number}")


def _add_end_options(group: Any, max_tokens: int) -> None:
    group.add_argument(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help=f"most tokens to write (default: {max_tokens})",
    )
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times"
    )


def _add_sampling_options(group: Any) -> None:
    for flag, kind, default, text in (
        ("--temperature", float, GREEDY.temperature, "divides the logits; 0 = greedy"),
        ("--top-k", int, GREEDY.top_k, "only the k likeliest tokens; 0 = off"),
        ("--top-p", float, GREEDY.top_p, "only the likeliest tokens that reach this probability together; 1 = off"),
        ("--min-p", float, GREEDY.min_p, "only tokens at least this many times as likely as the likeliest; 0 = off"),
        (
            "--repetition-penalty",
            float,
            GREEDY.repetition_penalty,
            "above 1: repeating becomes less likely; 1 = off",
        ),
    ):
        group.add_argument(flag, type=kind, default=default, metavar="X", help=f"{text} (default: {default:g})")
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="the same seed and the same decisions give the same text; a policy that looks at loads in progress may "
        "decide differently each time (default: a fresh one)",
    )
