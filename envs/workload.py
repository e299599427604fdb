"""Streams of requests as people make them: a topic lasts a while, a document is asked about again, a chat goes on.

A *unit* is what a request comes from: a single prompt, a document with its questions, a conversation with its turns.
Every domain deals singles and groups from shuffled decks, so prompts come up evenly; a deck is shuffled anew when it
is empty. The turns of a conversation keep their order, and so its prompts share their prefix.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from envs.traces import Trace, TraceSet
from runtime.core import Request
from runtime.errors import UserError


@dataclass(frozen=True)
class WorkloadConfig:
    """What a stream is like.

    Attributes:
        requests: Requests of a stream.
        min_topic_requests: Fewest requests before the topic changes.
        max_topic_requests: Most requests before the topic changes.
        follow_up: Chance that a request continues the topic's open document or conversation, or opens one; else it
            is a fresh single prompt.
        max_new_tokens: Most tokens of an answer; 0 = as many as were recorded.
        short_share: Chance that an answer is cut to ``short_tokens``.
        short_tokens: Most tokens of such an answer.
        domains: Domains of the prompts; none = all that were recorded.
        kinds: Kinds of prompts (``single``, ``rag``, ``chat``); none = all.
    """

    requests: int = 10
    min_topic_requests: int = 1
    max_topic_requests: int = 4
    follow_up: float = 0.6
    max_new_tokens: int = 0
    short_share: float = 0.0
    short_tokens: int = 24
    domains: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise UserError(f"workload.requests must be at least 1, got {self.requests}")
        if not 1 <= self.min_topic_requests <= self.max_topic_requests:
            raise UserError(
                "workload: expected 1 <= min_topic_requests <= max_topic_requests, got "
                f"{self.min_topic_requests} and {self.max_topic_requests}"
            )
        for name in ("follow_up", "short_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"workload.{name} is a probability, got {getattr(self, name)}")
        if self.short_tokens < 1:
            raise UserError(f"workload.short_tokens must be at least 1, got {self.short_tokens}")
        if self.max_new_tokens < 0:
            raise UserError(f"workload.max_new_tokens must be at least 0, got {self.max_new_tokens}")


class Item(NamedTuple):
    """A request with what the target will write for it."""

    request: Request
    trace: Trace


Stream = tuple[Item, ...]


class Workload:
    """Draws streams from the traces of one split.

    Args:
        traces: All traces.
        split: The split to draw from.
        config: What a stream is like.

    Raises:
        UserError: If the split has no traces of such domains and kinds.
    """

    def __init__(self, traces: TraceSet, split: str, config: WorkloadConfig) -> None:
        self.config = config
        self._eos_ids = traces.eos_ids
        self.traces = chosen = _wanted(traces.split(split), split, config)
        self._longest = max(len(trace.output_ids) for trace in chosen)
        self._domains = {
            domain: _units([trace for trace in chosen if trace.domain == domain])
            for domain in sorted({trace.domain for trace in chosen})
        }

    def stream(self, seed: int, index: int) -> Stream:
        """One stream, by itself; the same for the same ``seed`` and ``index``."""
        return self._cut(map(self._item, self._endless(random.Random(f"{seed}-{index}"))))

    def drawn(self, seed: int, index: int) -> Iterator[tuple[Trace, bool]]:
        """The texts of that stream and whether the answer is short, without making requests of them."""
        return islice(self._endless(random.Random(f"{seed}-{index}")), self.config.requests)

    def covering(self, seed: int, count: int) -> tuple[Stream, ...]:
        """Streams that go on dealing where the one before stopped, so that together they cover all prompts evenly.

        The first streams of a longer series are those of a shorter one. An open document or conversation goes on in
        the next stream.
        """
        endless = map(self._item, self._endless(random.Random(str(seed))))
        return tuple(self._cut(endless) for _ in range(count))

    def request(self, trace: Trace, short: bool = False) -> Request:
        """The request that a trace answers; ``short`` = with a short answer."""
        ended = trace.output_ids[-1] in self._eos_ids
        most = self._longest if ended else len(trace.output_ids)
        wanted = self.config.max_new_tokens or most
        wanted = min(wanted, self.config.short_tokens) if short else wanted
        return Request(trace.prompt_id, trace.prompt_ids, min(wanted, most), self._eos_ids, trace.domain)

    def _cut(self, endless: Iterator[Item]) -> Stream:
        return tuple(islice(endless, self.config.requests))

    def _item(self, drawn: tuple[Trace, bool]) -> Item:
        trace, short = drawn
        return Item(self.request(trace, short), trace)

    def _endless(self, rng: random.Random) -> Iterator[tuple[Trace, bool]]:
        topics = {domain: _Topic(units, rng) for domain, units in self._domains.items()}
        order: list[str] = []
        last = ""
        while True:
            if not order:
                order = list(topics)
                rng.shuffle(order)
                if len(order) > 1 and order[-1] == last:
                    order.reverse()
            last = order.pop()
            for _ in range(rng.randint(self.config.min_topic_requests, self.config.max_topic_requests)):
                trace = topics[last].next(rng.random() < self.config.follow_up)
                short = self.config.short_share > 0.0 and rng.random() < self.config.short_share
                yield trace, short


def _wanted(traces: Sequence[Trace], split: str, config: WorkloadConfig) -> list[Trace]:
    """The traces of the domains and kinds that are asked for; each name must occur."""
    for field, wanted in (("domains", config.domains), ("kinds", config.kinds)):
        known = {getattr(trace, field.removesuffix("s")) for trace in traces}
        if unknown := sorted(set(wanted) - known):
            raise UserError(
                f"workload.{field}: no traces of {', '.join(unknown)} in split '{split}', expected some of "
                f"{', '.join(sorted(known))}"
            )
    chosen = [
        trace
        for trace in traces
        if (not config.domains or trace.domain in config.domains) and (not config.kinds or trace.kind in config.kinds)
    ]
    if not chosen:
        raise UserError(
            f"workload: no trace of split '{split}' is of the kinds {', '.join(config.kinds)} and of the domains "
            f"{', '.join(config.domains)}: ask for others"
        )
    return chosen


class _Units(NamedTuple):
    """What one domain deals."""

    singles: list[list[Trace]]
    groups: list[list[Trace]]


def _units(traces: Sequence[Trace]) -> _Units:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.group, []).append(trace)
    units = [sorted(group, key=lambda trace: trace.turn) for group in groups.values()]
    singles = [unit for unit in units if unit[0].kind == "single"]
    return _Units(singles, [unit for unit in units if unit[0].kind != "single"])


class _Topic:
    """The decks of one domain."""

    def __init__(self, units: _Units, rng: random.Random) -> None:
        self._rng = rng
        self._singles, self._groups = _Deck(units.singles, rng), _Deck(units.groups, rng)
        self._open: list[Trace] = []

    def next(self, follow_up: bool) -> Trace:
        """The next request: of the open group (one is opened if need be), or a single prompt."""
        if self._groups.empty or (not follow_up and not self._singles.empty):
            return self._singles.draw()[0]
        if not self._open:
            self._open = list(self._groups.draw())
            if self._open[0].kind == "rag":  # questions about a document come in any order
                self._rng.shuffle(self._open)
        return self._open.pop(0)


class _Deck:
    """Units dealt one after another, shuffled anew when all were dealt."""

    def __init__(self, units: list[list[Trace]], rng: random.Random) -> None:
        self._units, self._rng = units, rng
        self._left: list[list[Trace]] = []

    @property
    def empty(self) -> bool:
        return not self._units

    def draw(self) -> list[Trace]:
        if not self._left:
            self._left = list(self._units)
            self._rng.shuffle(self._left)
        return self._left.pop()
