"""From rows to a table: tokens per second, and ratios with paired bootstrap intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agents.bootstrap import Interval, Speeds, ratio_interval
from benchmarks.engines.base import PLAIN
from benchmarks.engines.compare import Row

OTHERS = ("assisted", "lookup")
"""Families of speculation that transformers offers; the best setting of them all is the second reference."""


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a contender, in the order of the first prompt's rows.

    ``ratio_to_plain`` is its tokens/s over those of transformers' plain ``generate``, ``ratio_to_best`` over those of
    transformers' fastest speculation; both with a 95% interval over prompts.
    """
    speeds = {name: _speeds(rows, name) for name in dict.fromkeys(row.contender for row in rows)}
    family = {row.contender: row.family for row in rows}
    best = max((name for name in speeds if family[name] in OTHERS), key=lambda name: _rate(speeds[name]))
    entries = []
    for name, speed in speeds.items():
        per_token_ms = [1e3 * s / t for s, t in zip(speed.seconds, speed.tokens, strict=True)]
        entries.append(
            {
                "contender": name,
                "family": family[name],
                "prompts": len(speed.tokens),
                "tokens": int(sum(speed.tokens)),
                "seconds": sum(speed.seconds),
                "tokens_per_s": _rate(speed),
                "median_ms_per_token": float(np.median(per_token_ms)),
                "ratio_to_plain": _interval(ratio_interval(speed, speeds[PLAIN])),
                "ratio_to_best": _interval(ratio_interval(speed, speeds[best])),
                "best_speculation_of_transformers": name == best,
            }
        )
    return sorted(entries, key=lambda entry: list(family).index(str(entry["contender"])))


def table(entries: Sequence[dict[str, Any]]) -> str:
    """The summary as a Markdown table."""
    lines = [
        "| | tokens/s | ms a token, median | x plain `generate` | x its best speculation |",
        "|---|---|---|---|---|",
    ]
    for entry in entries:
        ratios = ("{value:.2f} [{low:.2f}, {high:.2f}]".format(**entry[key])
                  for key in ("ratio_to_plain", "ratio_to_best"))  # fmt: skip
        mark = " (its best)" if entry["best_speculation_of_transformers"] else ""
        lines.append(
            f"| {entry['contender']}{mark} | {entry['tokens_per_s']:.1f} | {entry['median_ms_per_token']:.1f} | "
            f"{' | '.join(ratios)} |"
        )
    return "\n".join(lines)


def _speeds(rows: Sequence[Row], name: str) -> Speeds:
    """Tokens and seconds by prompt; prompts come in the same order for everybody."""
    own = sorted((row.prompt_id, len(row.tokens), row.seconds) for row in rows if row.contender == name)
    return Speeds([tokens for _, tokens, _ in own], [seconds for _, _, seconds in own])


def _rate(speed: Speeds) -> float:
    return sum(speed.tokens) / sum(speed.seconds)


def _interval(interval: Interval) -> dict[str, float]:
    return interval._asdict()
