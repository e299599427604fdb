"""What came out for every controller: speed against plain decoding, and whether the texts are the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from runtime.cli.benching.intervals import Ratio, Work, ratio
from runtime.cli.benching.runs import Run

PLAIN = "plain"


@dataclass(frozen=True)
class Summary:
    """One controller over all prompts and passes. Times in seconds.

    Attributes:
        controller: Its name.
        tokens_per_s: Median over its answers.
        ratio_to_plain: Its total tokens/s / plain's, over the same prompts.
        ci95: Paired bootstrap interval of it; None with a single prompt.
        ttft_s: Median time to the first token.
        acceptance: Share of verified guesses that were accepted; None without guesses.
        tokens_per_round: Tokens that a round committed.
        loads: Background loads of drafts.
        stall_s: Time spent waiting for a load.
        kv_hit_tokens: Prompt tokens whose KV was found again.
        peak_budget_bytes: Most that its drafts and KV took of the budget.
        tokens: Tokens written.
        seconds: Time they took.
        differing: Answers that are not plain decoding's.
    """

    controller: str
    tokens_per_s: float
    ratio_to_plain: float
    ci95: tuple[float, float] | None
    ttft_s: float
    acceptance: float | None
    tokens_per_round: float | None
    loads: int
    stall_s: float
    kv_hit_tokens: int
    peak_budget_bytes: int
    tokens: int
    seconds: float
    differing: int

    def as_json(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """An answer that is not plain decoding's.

    Attributes:
        run: The answer.
        position: Its first token that differs.
    """

    run: Run
    position: int


def summarise(runs: Sequence[Run], names: Sequence[str]) -> list[Summary]:
    """A summary of every controller, in the order of ``names``."""
    wrong = [difference.run.controller for difference in differences(runs)]
    plain = _work(runs, PLAIN)
    return [_summary(runs, name, ratio(_work(runs, name), plain), wrong.count(name)) for name in names]


def differences(runs: Sequence[Run]) -> list[Difference]:
    """The answers that are not what plain decoding wrote to the same prompt in its first pass."""
    own = {run.prompt: run.tokens for run in runs if run.controller == PLAIN and run.turn == 0}
    return [
        Difference(run, _first_difference(run.tokens, own[run.prompt])) for run in runs if run.tokens != own[run.prompt]
    ]


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _work(runs: Sequence[Run], name: str) -> Work:
    """What a controller did, by prompt, all passes together."""
    prompts = 1 + max(run.prompt for run in runs)
    tokens, seconds = np.zeros(prompts), np.zeros(prompts)
    for run in runs:
        if run.controller == name:
            tokens[run.prompt] += len(run.tokens)
            seconds[run.prompt] += run.seconds
    return Work(tokens, seconds)


def _summary(runs: Sequence[Run], name: str, against_plain: Ratio, differing: int) -> Summary:
    own = [run for run in runs if run.controller == name]
    counted = [run.counters for run in own]
    drafted, rounds = sum(each.drafted for each in counted), sum(each.rounds for each in counted)
    return Summary(
        controller=name,
        tokens_per_s=median(len(run.tokens) / run.seconds for run in own),
        ratio_to_plain=against_plain.value,
        ci95=against_plain.interval,
        ttft_s=median(run.ttft_s for run in own),
        acceptance=sum(each.accepted for each in counted) / drafted if drafted else None,
        tokens_per_round=sum(each.accepted + each.corrections for each in counted) / rounds if rounds else None,
        loads=sum(each.loads for each in counted),
        stall_s=sum(each.stall_s for each in counted),
        kv_hit_tokens=sum(each.kv_hit_tokens for each in counted),
        peak_budget_bytes=max(each.peak_budget_bytes for each in counted),
        tokens=sum(len(run.tokens) for run in own),
        seconds=sum(run.seconds for run in own),
        differing=differing,
    )
