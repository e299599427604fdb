"""Streams as numbers of texts: what ``envs.workload.Workload`` draws, without building requests."""

from __future__ import annotations

import numpy as np

from envs.batched.kernel import columns as col
from envs.batched.kernel.tables import Longs
from envs.replay.bank import TraceBank
from envs.workload import Workload


class Dealer:
    """Deals streams.

    Args:
        workload: Whose streams they are.
        bank: Holds the texts.

    Raises:
        ValueError: If a request asks for more tokens than were recorded.
    """

    def __init__(self, workload: Workload, bank: TraceBank) -> None:
        self._workload = workload
        self._rows = {
            trace.prompt_id: [_request(workload, bank, index, short) for short in (False, True)]
            for index, trace in enumerate(workload.traces)
        }

    def stream(self, seed: int, index: int) -> Longs:
        """The stream of ``Workload.stream(seed, index)``: one row a request, shape (requests, PLAN)."""
        rows = [self._rows[trace.prompt_id][short] for trace, short in self._workload.drawn(seed, index)]
        return np.array(rows, dtype=np.int64)


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
