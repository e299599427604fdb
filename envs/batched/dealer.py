"""Streams as numbers of texts: what ``envs.workload.Workload`` draws, without building requests.

The same draws from the same generator in the same order, so that a seed gives the same stream; only the sorting of
traces into domains and units, which does not depend on the seed, is done once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import numpy as np

from envs.batched.kernel import columns as col
from envs.batched.kernel.tables import Longs
from envs.replay.bank import TraceBank
from envs.workload import Workload

Unit = list[int]
"""Texts that are dealt together: a single prompt, or those of one group in their order."""


class Dealer:
    """Deals streams.

    Args:
        workload: Whose streams they are.
        bank: Holds the texts.

    Raises:
        ValueError: If a request asks for more tokens than were recorded.
    """

    def __init__(self, workload: Workload, bank: TraceBank) -> None:
        self.config = workload.config
        self._domains: dict[str, tuple[list[Unit], list[Unit]]] = {}
        self._questions = [trace.kind == "rag" for trace in workload.traces]
        for domain in sorted({trace.domain for trace in workload.traces}):
            groups: dict[str, Unit] = {}
            for index, trace in enumerate(workload.traces):
                if trace.domain == domain:
                    groups.setdefault(trace.group, []).append(index)
            units = [sorted(group, key=lambda index: workload.traces[index].turn) for group in groups.values()]
            single = [workload.traces[unit[0]].kind == "single" for unit in units]
            self._domains[domain] = (
                [unit for unit, alone in zip(units, single, strict=True) if alone],
                [unit for unit, alone in zip(units, single, strict=True) if not alone],
            )
        self._rows = [[_request(workload, bank, index, short) for short in (False, True)] for index in self._indices]

    @property
    def _indices(self) -> range:
        return range(len(self._questions))

    def stream(self, seed: int, index: int) -> Longs:
        """The stream of ``Workload.stream(seed, index)``: one row a request, shape (requests, PLAN)."""
        endless = self._endless(random.Random(f"{seed}-{index}"))
        return np.array(list(islice(endless, self.config.requests)), dtype=np.int64)

    def _endless(self, rng: random.Random) -> Iterator[tuple[int, int, int]]:
        config, order, last = self.config, list[str](), ""
        topics = {domain: _Topic(*decks, self._questions, rng) for domain, decks in self._domains.items()}
        while True:
            if not order:
                order = list(topics)
                rng.shuffle(order)
                if len(order) > 1 and order[-1] == last:
                    order.reverse()
            last = order.pop()
            for _ in range(rng.randint(config.min_topic_requests, config.max_topic_requests)):
                text = topics[last].next(rng.random() < config.follow_up)
                short = config.short_share > 0.0 and rng.random() < config.short_share
                yield self._rows[text][short]


def _request(workload: Workload, bank: TraceBank, index: int, short: bool) -> tuple[int, int, int]:
    """A row of a plan."""
    trace = workload.traces[index]
    request, output = workload.request(trace, short), bank.text(trace.prompt_ids, trace.prompt_id).trace.output_ids
    if request.max_new_tokens > len(output) and output[-1] not in request.eos_ids:
        raise ValueError(
            f"request {request.request_id}: at most {len(output)} tokens were recorded, got max_new_tokens "
            f"{request.max_new_tokens}: ask for fewer"
        )
    row = [0] * col.PLAN
    row[col.PLAN_TEXT], row[col.PLAN_MOST] = index, request.max_new_tokens
    row[col.PLAN_END] = min(len(output), request.max_new_tokens)
    return row[0], row[1], row[2]


class _Topic:
    """The decks of one domain, as ``envs.workload._Topic``."""

    def __init__(self, singles: list[Unit], groups: list[Unit], questions: list[bool], rng: random.Random) -> None:
        self._units, self._groups, self._questions, self._rng = singles, groups, questions, rng
        self._decks: tuple[list[Unit], list[Unit]] = ([], [])
        self._open: Unit = []

    def next(self, follow_up: bool) -> int:
        """The next text."""
        if not self._groups or (not follow_up and self._units):
            return self._draw(0, self._units)[0]
        if not self._open:
            self._open = list(self._draw(1, self._groups))
            if self._questions[self._open[0]]:  # questions about a document come in any order
                self._rng.shuffle(self._open)
        return self._open.pop(0)

    def _draw(self, deck: int, units: list[Unit]) -> Unit:
        left = self._decks[deck]
        if not left:
            left.extend(units)
            self._rng.shuffle(left)
        return left.pop()
