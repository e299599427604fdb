"""The opening of the page, for somebody who has read nothing else: what was compared, on what, and who won."""

from __future__ import annotations

from typing import NamedTuple

from agents.report.rows import PLAIN, POLICY, Report, ReportRow

INTRODUCTION = (
    "A large language model writes faster if a small one guesses ahead: the large one checks several guesses at once "
    "and keeps those that are its own next words, so the text stays the same and only the time changes. Memory is "
    "short: not every small model fits, and each takes time to load. A controller decides, word by word, which small "
    "model guesses, how far, what is loaded, and which earlier prompts are kept. This page compares controllers on the "
    "same requests."
)


class Fact(NamedTuple):
    """One thing to know about the comparison."""

    name: str
    text: str


def title(report: Report) -> str:
    """The result in a few words."""
    best = _named(report, POLICY) or _best_other(report)
    if best is None or best.controller == PLAIN:
        return "Plain decoding is the fastest controller here"
    who = "The learned policy" if best.controller == POLICY else best.controller
    return f"{who} writes {best.speedup_vs_plain:.2f} times as fast as the large model alone"


def result(report: Report) -> str:
    """The result in one sentence, with its intervals."""
    policy, other = _named(report, POLICY), _best_other(report)
    best = policy or other
    if best is None:
        return ""
    who = "The learned policy" if policy else f"The fastest controller, {best.controller},"
    sentence = f"{who} writes {best.speedup_vs_plain:.2f} times as fast as plain decoding ({_interval(best.ci95)})"
    if policy is None or other is None or other.policy_ratio is None:
        return sentence + "."
    value, (low, high) = other.policy_ratio
    verdict = "a clear gain" if low > 1.0 else "a clear loss" if high < 1.0 else "too close to call"
    against = f"{value:.2f} times as fast as the best other controller, {other.controller} ({_interval((low, high))})"
    return f"{sentence}, and {against}: {verdict}."


def facts(report: Report) -> tuple[Fact, ...]:
    """Device, where times come from, how much work, whether the texts are right."""
    first = report.rows[0]
    streams = f"{report.streams} stream{'s' * (report.streams != 1)} of requests"
    wrong = [row.controller for row in report.rows if not row.identical]
    texts = f"Differ from the large model's own with {', '.join(wrong)}" if wrong else "The same from every controller"
    bounds = sum(row.bound for row in report.rows)
    compared = f"{len(report.rows) - bounds} controllers" + (f" and {bounds} computed bounds" if bounds else "")
    return (
        Fact("Compared", compared),
        Fact("Device", report.device),
        Fact("Times", _times_from(report)),
        Fact("Work of each controller", f"{streams}: {first.requests:,} requests, {first.tokens:,} tokens"),
        Fact("Texts", texts),
    )


def _times_from(report: Report) -> str:
    if not report.replay:
        return "Measured: the real models ran on the wall clock"
    if report.simulated:
        return "Simulated: recorded texts, with the costs of a device that was made up or altered, not measured"
    return "Simulated: recorded texts, with the cost of every step as measured on this device"


def _interval(ci95: tuple[float, float]) -> str:
    return f"95% interval {ci95[0]:.2f} to {ci95[1]:.2f}"


def _named(report: Report, name: str) -> ReportRow | None:
    return next((row for row in report.rows if row.controller == name), None)


def _best_other(report: Report) -> ReportRow | None:
    """The fastest that is neither a bound nor the policy."""
    return next((row for row in report.sorted_rows() if not row.bound and row.controller != POLICY), None)
