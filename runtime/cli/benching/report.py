"""A benchmark as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.cli.benching.prompts import Prompt
from runtime.cli.benching.runs import Run
from runtime.cli.benching.summary import Difference, Summary

BENCH_SCHEMA = 1

_HEAD = ("controller", "tokens/s", "× plain", "95%", "first token", "accepted", "loads", "stall", "budget")


def table(summaries: Sequence[Summary]) -> str:
    """One line a controller; numbers stand below each other."""
    rows = [_HEAD, *(_cells(summary) for summary in summaries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(widths[i]) for i, cell in enumerate(row[1:], 1))])
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _cells(summary: Summary) -> tuple[str, ...]:
    low, high = summary.ci95 or (None, None)
    return (
        summary.controller,
        f"{summary.tokens_per_s:.1f}",
        f"{summary.ratio_to_plain:.3f}",
        "–" if low is None else f"[{low:.3f}, {high:.3f}]",
        f"{summary.ttft_s * 1e3:.0f} ms",
        "–" if summary.acceptance is None else f"{summary.acceptance:.0%}",
        str(summary.loads),
        f"{summary.stall_s:.2f} s",
        f"{summary.peak_budget_bytes / 1e6:.1f} MB",
    )


def heading(facts: Mapping[str, Any], answers: int) -> str:
    """What was measured, for people.

    Args:
        facts: As in the JSON.
        answers: How many were measured.
    """
    bundle, machine, peak = facts["bundle"], facts["machine"], facts["peak_rss_bytes"]
    profile = f"{bundle['profile']['device']}{', simulated' if bundle['profile']['simulated'] else ''}"
    device = machine["accelerator"] or machine["processor"]
    memory = "unknown" if peak is None else f"{peak / 1e6:.0f} MB"
    return "\n".join(
        [
            f"bundle   {bundle['folder']} (profile of: {profile})",
            f"device   {device}, {machine['threads']} threads, {machine['dtype']}",
            f"asked    {answers} answers, up to {facts['settings']['max_tokens']} tokens each",
            f"memory   at most {memory} in this process, which holds the drafts of all controllers",
        ]
    )


def told(difference: Difference, prompts: Sequence[Prompt]) -> str:
    """A difference in words."""
    run = difference.run
    return (
        f"'{run.controller}', prompt {run.prompt + 1} ({prompts[run.prompt].text[:40]!r}), pass {run.turn + 1}: "
        f"another token at position {difference.position + 1}"
    )


def as_json(
    facts: Mapping[str, Any], prompts: Sequence[Prompt], summaries: Sequence[Summary], runs: Sequence[Run]
) -> dict[str, Any]:
    """Everything, with a schema version.

    Args:
        facts: What was measured, on what, with which settings.
        prompts: What was asked.
        summaries: One a controller.
        runs: One an answer.
    """
    return {
        "schema": BENCH_SCHEMA,
        **facts,
        "prompts": [prompt._asdict() for prompt in prompts],
        "controllers": [summary.as_json() for summary in summaries],
        "identical": not any(summary.differing for summary in summaries),
        "rows": [_row(run) for run in runs],
    }


def _row(run: Run) -> dict[str, Any]:
    counted = run.counters
    return {
        "controller": run.controller,
        "prompt": run.prompt,
        "pass": run.turn,
        "tokens": len(run.tokens),
        "seconds": run.seconds,
        "ttft_s": run.ttft_s,
        "rounds": counted.rounds,
        "drafted": counted.drafted,
        "accepted": counted.accepted,
        "loads": counted.loads,
        "stall_s": counted.stall_s,
        "kv_hit_tokens": counted.kv_hit_tokens,
        "guard_forwards": counted.guard_forwards,
    }
