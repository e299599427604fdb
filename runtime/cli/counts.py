"""Counters as a user reads them."""

from __future__ import annotations

from dataclasses import fields, replace
from statistics import median
from typing import Any

from runtime.core import Counters

STATES = ("peak_budget_bytes",)
"""Counters that are no sums."""


def snapshot(counters: Counters) -> Counters:
    """A copy that stays as it is while the session counts on."""
    return replace(counters, ttft_s=list(counters.ttft_s))


def since(before: Counters, now: Counters) -> Counters:
    """What was counted between two moments of a session; the peak is that of the session so far."""
    changed: dict[str, Any] = {
        field.name: getattr(now, field.name) - getattr(before, field.name)
        for field in fields(Counters)
        if field.name not in (*STATES, "ttft_s")
    }
    kept = {name: getattr(now, name) for name in STATES}
    return Counters(**changed, **kept, ttft_s=now.ttft_s[len(before.ttft_s) :])


def describe(total: Counters, tokens: int, seconds: float, name: str) -> dict[str, Any]:
    """Counters by name, see ``runtime.core.Counters``; committed = admitted + accepted + corrections.

    Args:
        total: What was counted.
        tokens: Tokens written.
        seconds: Time they took, above 0.
        name: Who decided.
    """
    return {
        "controller": name,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 2),
        "ttft_s": round(median(total.ttft_s), 3) if total.ttft_s else None,
        "rounds": total.rounds,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "acceptance_rate": round(total.acceptance_rate, 4),
        "corrections": total.corrections,
        "admitted": total.admitted,
        "committed": total.committed,
        "prefill_tokens": total.prefill_tokens,
        "kv_hit_tokens": total.kv_hit_tokens,
        "kv_disk_tokens": total.kv_disk_tokens,
        "kv_saved_s": round(total.kv_saved_s, 4),
        "loads": total.loads,
        "stall_s": round(total.stall_s, 4),
        "guard_forwards": total.guard_forwards,
        "peak_budget_mb": round(total.peak_budget_bytes / 1e6, 1),
    }


def table(stats: dict[str, Any]) -> str:
    """Counters, one a line."""
    return "\n".join(f"{name:<18} {value}" for name, value in stats.items())


def one_line(stats: dict[str, Any]) -> str:
    """What matters of an answer's counters."""
    return (
        f"[{stats['tokens']} tokens, {stats['tokens_per_s']} tokens/s, first after {stats['ttft_s']} s, "
        f"{stats['accepted']} of {stats['drafted']} guesses accepted, KV of {stats['kv_hit_tokens']} tokens reused]"
    )
