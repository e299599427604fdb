"""Traces made ready for replay: plain arrays and running counts, made once and shared by every decoder."""

from __future__ import annotations

from array import array
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from envs.replay.costs import RememberedCosts
from envs.trace_code import calibrated_table
from envs.traces import DraftTrace, Trace, TraceSet
from runtime.control.topic import TopicPredictor
from runtime.core import DraftSpec
from runtime.errors import UserError
from runtime.profile import CostModel

Floats = npt.NDArray[np.float32]
LONGEST_RUN = 255


class DraftView(NamedTuple):
    """A ``DraftTrace`` for fast single reads.

    Attributes:
        run: Right guesses in a row from position i on, capped at ``LONGEST_RUN``, shape (L,).
        matches: Right guesses before position i, shape (L + 1,).
        confidence: Coded confidences, shape (L,).
        run_on: Coded confidences behind wrong guesses.
        start: Where each position's run-on begins, shape (L + 1,).
    """

    run: bytes
    matches: array[int]
    confidence: array[int]
    run_on: array[int]
    start: array[int]

    @classmethod
    def of(cls, trace: DraftTrace) -> DraftView:
        """Make one ready."""
        run = bytearray(len(trace.match))
        right = 0
        for position in range(len(run) - 1, -1, -1):
            right = min(right + 1, LONGEST_RUN) if trace.match[position] else 0
            run[position] = right
        return cls(
            bytes(run),
            array("i", accumulate(map(int, trace.match), initial=0)),
            array("H", trace.confidence.tobytes()),
            array("H", trace.run_on.tobytes()),
            array("i", trace.start.tobytes()),
        )


class Replayed:
    """One text ready for replay.

    Args:
        trace: Its trace.
        columns: Column in the trace of every draft of the zoo; None for one without weights.
        topic: Topic predictor over the zoo's drafts, or None.
    """

    def __init__(self, trace: Trace, columns: tuple[int | None, ...], topic: TopicPredictor | None) -> None:
        self.trace = trace
        self._columns = columns
        self._topic = topic

    @cached_property
    def views(self) -> tuple[DraftView | None, ...]:
        """By draft of the zoo."""
        drafts = self.trace.drafts
        return tuple(None if column is None else DraftView.of(drafts[column]) for column in self._columns)

    @cached_property
    def predicted(self) -> Floats | None:
        """Topic predictions behind 1 … L committed tokens, shape (L, drafts)."""
        if self._topic is None:
            return None
        tokens = (*self.trace.prompt_ids, *self.trace.output_ids)
        return self._topic.predict_all(tokens, len(self.trace.prompt_ids) + 1)


class TraceBank:
    """Everything decoders share: texts by their prompt, costs, calibration.

    Args:
        traces: The texts.
        drafts: The zoo's drafts, in index order.
        costs: What work costs.
        topic: Topic predictor with the same drafts; None = every draft's ``expected`` is the prediction.

    Raises:
        UserError: If a draft was not recorded, or the topic predictor is of other drafts.
    """

    def __init__(
        self,
        traces: TraceSet,
        drafts: tuple[DraftSpec, ...],
        costs: CostModel,
        topic: TopicPredictor | None = None,
    ) -> None:
        names = tuple(draft.name for draft in drafts)
        if topic is not None and topic.drafts != names:
            raise UserError(
                f"expected a topic predictor of the drafts {', '.join(names)}, got one of {', '.join(topic.drafts)}: "
                "build the zoo again"
            )
        columns = tuple(traces.column(draft.name) if draft.loadable else None for draft in drafts)
        self.drafts = drafts
        self.costs = RememberedCosts(costs)
        self.tables = tuple(calibrated_table(*draft.calibration) for draft in drafts)
        self.expected: Floats = np.array([draft.expected for draft in drafts], dtype=np.float32)
        self._texts = {trace.prompt_ids: Replayed(trace, columns, topic) for trace in traces.traces}

    def text(self, prompt_ids: tuple[int, ...], request_id: str) -> Replayed:
        """The text of a prompt.

        Raises:
            ValueError: If it was not recorded.
        """
        found = self._texts.get(prompt_ids)
        if found is None:
            raise ValueError(f"request {request_id}: expected a recorded prompt, got one without a trace: record it")
        return found
