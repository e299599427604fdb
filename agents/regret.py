"""Where the time between a controller and the clairvoyant bound went, by cause.

With V(i) the clairvoyant's least time from position i of a text to its end, a round that begins at i, takes c seconds
and commits n tokens has regret c + V(i + n) - V(i). Summed over a text these telescope to the decode time less V(1), so
the parts below, which split each round's regret, add up exactly to the time above the bound.

| part | is |
|---|---|
| residency | B - V(i); B = best to be had with the drafts in memory (plain included), any length |
| wrong_draft | C - B; C = best to be had with the draft that was used, any length (or with plain, if none was) |
| too_short, too_long | R - C; R = this very round alone on the device, without catch-up, then V(i + n) |
| catch_up | what the draft's forwards cost beyond those of R |
| loading | the rest: decoding waited for a load, or went on beside a load or a copy to disk |

Best always means: then go on as the clairvoyant does. Too short is a round that sent less than C does, too long
one that sent more. Admission and completion have no positions: what they cost alone on the
device, less the clairvoyant's prefill, is ``kv``, their rest ``loading``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from agents.evaluation import Factory
from agents.foresight import Floats, Foresight, Ints, Sends, foresee
from agents.oracle import clairvoyant_values
from agents.timeline import Step, Timeline, record_timeline
from envs.replay.bank import TraceBank
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.core import Phase

CAUSES: Mapping[str, str] = {
    "residency": "the best draft of the moment was not in memory",
    "wrong_draft": "another draft in memory (or plain) would have been better",
    "too_short": "the draft could have guessed more",
    "too_long": "the draft guessed too much",
    "catch_up": "the draft first had to absorb text it had not seen",
    "loading": "waiting for loads, and work slowed down beside loads and copies to disk",
    "kv": "prompts computed again, and KV copied",
}
"""Causes in the order of reports, with what each means."""


@dataclass(frozen=True)
class Regret:
    """One controller over all streams.

    Attributes:
        controller: Name in reports.
        seconds: Time it took.
        bound_s: Time the clairvoyant bound takes for the same streams.
        parts: Seconds by cause, a key of ``CAUSES`` each; they add up to ``seconds - bound_s``.
    """

    controller: str
    seconds: float
    bound_s: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Hindsight:
    """What would have been best from every position of one request.

    Attributes:
        request: The request, foreseen.
        values: The clairvoyant's time to the end, shape (end + 1,).
        plain_s: Least time to the end if a plain round comes first, shape (end,).
        draft_s: The same for a round of each draft, shape (drafts, end).
        lengths: Guesses sent in that round, shape (drafts, end).
    """

    request: Foresight
    values: Floats
    plain_s: Floats
    draft_s: Floats
    lengths: Ints

    @classmethod
    def of(cls, request: Foresight) -> Hindsight:
        """Look back on a request."""
        values, sends, here = clairvoyant_values(request), Sends.of(request), np.arange(request.end)
        by_length = sends.seconds + values[here + sends.tokens]
        plain_s = request.verify_s[0, : request.end] + values[1:]
        return cls(request, values, plain_s, by_length.min(axis=1), by_length.argmin(axis=1))

    @property
    def bound_s(self) -> float:
        """The clairvoyant's time for the whole request."""
        return self.request.prefill_s + float(self.values[1])

    def least_s(self, at: int, draft: int | None) -> float:
        """Least time to the end if a round of this draft (None = plain) comes first."""
        return float(self.plain_s[at] if draft is None else self.draft_s[draft, at])


def look_back(streams: Sequence[Stream], bank: TraceBank) -> list[list[Hindsight]]:
    """Hindsight on every request, by stream."""
    return [[Hindsight.of(request) for request in foresee(stream, bank)] for stream in streams]


def regret_of(
    timelines: Sequence[Timeline],
    streams: Sequence[Stream],
    bank: TraceBank,
    hindsight: Sequence[Sequence[Hindsight]] | None = None,
) -> Regret:
    """Split what one controller took above the bound, over all its streams.

    Args:
        timelines: What it did in replay, at least one; ``Timeline.stream`` says in which of ``streams``.
        streams: The streams.
        bank: Texts and costs they were replayed with.
        hindsight: ``look_back`` on these streams, if it is at hand.
    """
    hindsight = look_back(streams, bank) if hindsight is None else hindsight
    parts = dict.fromkeys(CAUSES, 0.0)
    for timeline in timelines:
        for step in timeline.steps:
            for cause, seconds in step_regret(step, hindsight[timeline.stream][step.request], bank).items():
                parts[cause] += seconds
    bound_s = sum(request.bound_s for timeline in timelines for request in hindsight[timeline.stream])
    return Regret(timelines[0].controller, sum(timeline.seconds for timeline in timelines), bound_s, parts)


def regret_report(
    factories: Mapping[str, Factory], streams: Sequence[Stream], world: ReplayWorld, progress: bool = False
) -> list[Regret]:
    """Let every controller serve every stream in replay, and split what each took above the bound.

    Args:
        factories: Controllers by name in the report; each is built once and serves the streams in order.
        streams: At least one stream.
        world: Where they are replayed.
        progress: Whether to show a progress bar.
    """
    hindsight, regrets = look_back(streams, world.bank), []
    with tqdm(total=len(factories) * len(streams), desc="regret", unit="streams", disable=not progress) as bar:
        for name, make in factories.items():
            controller, timelines = make(), []
            for index, stream in enumerate(streams):
                timelines.append(record_timeline(controller, stream, world.session(), name, index))
                bar.update()
            regrets.append(regret_of(timelines, streams, world.bank, hindsight))
    return regrets


def step_regret(step: Step, request: Hindsight, bank: TraceBank) -> dict[str, float]:
    """Seconds by cause of one step; causes that cannot be its are left out."""
    taken_s = step.end_s - step.start_s
    if step.phase is not Phase.DECODE:
        alone_s = _kv_s(step, request.request, bank)
        prefill_s = request.request.prefill_s if step.phase is Phase.ADMIT else 0.0
        return {"kv": alone_s - prefill_s, "loading": taken_s - alone_s}
    at, draft = step.position, step.draft
    chosen_s = request.least_s(at, draft)
    there = {*step.resident, draft, None}  # a draft that was waited for is there when the round begins
    resident_s = min(request.least_s(at, each) for each in there)
    round_s, forwards_s = _round_s(step, request.request, draft, bank)
    short = draft is not None and step.drafted < request.lengths[draft, at]
    return {
        "residency": resident_s - float(request.values[at]),
        "wrong_draft": chosen_s - resident_s,
        "too_short" if short else "too_long": round_s + float(request.values[at + step.committed]) - chosen_s,
        "catch_up": forwards_s,
        "loading": taken_s - round_s - forwards_s,
    }


def _round_s(step: Step, request: Foresight, draft: int | None, bank: TraceBank) -> tuple[float, float]:
    """What a round costs alone on the device: (as the oracles count it, the rest of its draft's forwards)."""
    verify_s = float(request.verify_s[step.drafted, step.position])
    if draft is None:
        return verify_s, 0.0
    reach, width = request.drafts[draft], 1 + step.catch_up_tokens
    round_s = reach.round_s + reach.step_s * step.steps
    forwards_s = bank.costs.draft_s(draft, width)
    if step.steps > 1:
        forwards_s += (step.steps - 1) * bank.costs.draft_s(draft, 1)
    return round_s + verify_s, forwards_s - round_s


def _kv_s(step: Step, request: Foresight, bank: TraceBank) -> float:
    """What an admission or a completion costs alone on the device, with the time it waited for stored KV."""
    model, reused = bank.costs.model, step.reused_tokens
    if step.phase is Phase.ADMIT:
        restore_s = model.kv_restore_s(reused) if reused else 0.0
        return step.stall_s + restore_s + model.prefill_s(request.prompt - reused, reused)
    return model.kv_store_s(step.retained_tokens) if step.retained_tokens else 0.0
