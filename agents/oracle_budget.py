"""The clairvoyant under the budget: only drafts in memory can guess, and memory holds only so many.

It knows every guess of every draft, and takes the least time over drafts, lengths and loads, by dynamic programming
over a whole stream with state (request, position, drafts in memory). It is a bound, so what it does not know well it
takes lightly:

* A load costs what it takes away from decoding, the lesser of two ways: all of it waited for, or all of it beside
  decoding. Replay mixes the two and its loss is linear in the mixture, so it never loses less.
* The draft that is brought in is there at once, the drafts that are given up for it have cost nothing.
* Stored KV weighs nothing, and loads may be decided at every position.

A stream starts with no draft in memory but those without weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.foresight import LONGEST, Floats, Foresight, Sends
from runtime.core import DraftSpec, MemoryConfig
from runtime.errors import UserError
from runtime.profile import CostModel

MOST_SETS = 4096
"""Most sets of drafts that are followed: a stream of ten requests with 128 tokens each then takes about 8 s."""

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Load:
    """One draft is brought into memory.

    Attributes:
        draft: Its index.
        seconds: Decoding time that the load takes away.
        without: Sets that lack the draft and have room for it, as indices, shape (n,).
        with_it: The same sets with the draft, shape (n,).
    """

    draft: int
    seconds: float
    without: Indices
    with_it: Indices


@dataclass(frozen=True)
class WorkingSets:
    """All sets of drafts that a budget can hold.

    Attributes:
        sets: The drafts with weights that each holds; the first is empty.
        weightless: Drafts that are always there.
        loads: One for each draft that fits at all.
    """

    sets: tuple[frozenset[int], ...]
    weightless: tuple[int, ...]
    loads: tuple[Load, ...]

    @classmethod
    def of(cls, drafts: Sequence[DraftSpec], costs: CostModel, memory: MemoryConfig) -> WorkingSets:
        """Workspace and drafts without weights are always counted, as ``runtime.memory.manager`` does.

        Raises:
            UserError: If there are more than ``MOST_SETS`` sets.
        """
        weightless = tuple(index for index, draft in enumerate(drafts) if not draft.loadable)
        free = memory.budget_bytes - memory.workspace_bytes - sum(drafts[index].bytes for index in weightless)
        sets = _fitting({index: draft.bytes for index, draft in enumerate(drafts) if draft.loadable}, free)
        where = {held: index for index, held in enumerate(sets)}
        loads = []
        for draft in sorted(frozenset[int]().union(*sets)):
            pairs = [(where[held - {draft}], index) for held, index in where.items() if draft in held]
            without, with_it = np.array(pairs, dtype=np.intp).T
            loads.append(Load(draft, load_loss_s(costs, draft), without, with_it))
        return cls(sets, weightless, tuple(loads))

    def settle(self, values: Floats) -> None:
        """Let any loads come first: in place, least time from each set to the end, shape (sets,).

        The way from one set to another drops what is not wanted, then loads what is missing.
        """
        for load in self.loads:
            values[load.without] = np.minimum(values[load.without], values[load.with_it] + load.seconds)
        for load in self.loads:
            values[load.with_it] = np.minimum(values[load.with_it], values[load.without])

    def rounds_s(self, request: Foresight) -> Floats:
        """Least time of a round from a position, by tokens committed and set, shape (end, LONGEST + 1, sets)."""
        by_draft = Sends.of(request).least_s().transpose(0, 2, 1)  # (drafts, end, LONGEST + 1)
        always = np.full((request.end, LONGEST + 1), np.inf)
        always[:, 0] = request.verify_s[0, : request.end]
        for draft in self.weightless:
            always = np.minimum(always, by_draft[draft])
        least = np.repeat(always[:, :, None], len(self.sets), axis=2)
        for load in self.loads:
            least[:, :, load.with_it] = np.minimum(least[:, :, load.with_it], by_draft[load.draft][:, :, None])
        return least


def load_loss_s(costs: CostModel, draft: int) -> float:
    """Decoding time that a load takes away at least: waited for, or beside decoding (``envs.replay.loader``)."""
    decode_slowdown = max(1.0, costs.profile.decode_slowdown)
    beside = max(1.0, costs.profile.load_slowdown) * (1.0 - 1.0 / decode_slowdown)
    return costs.load_s(draft) * min(1.0, beside)


def budget_s(requests: Sequence[Foresight], memory: WorkingSets) -> float:
    """Least decode time of a whole stream, loads included."""
    then = np.zeros(len(memory.sets))  # least time from each set, behind the request in hand
    for request in reversed(requests):
        rounds_s = memory.rounds_s(request)
        values = np.zeros((request.end + LONGEST + 1, len(memory.sets)))
        values[request.end] = then
        for at in range(request.end - 1, 0, -1):
            values[at] = (rounds_s[at] + values[at + 1 : at + LONGEST + 2]).min(axis=0)
            memory.settle(values[at])
        then = values[min(1, request.end)]
    return float(then[0])


def _fitting(sizes: dict[int, int], free_bytes: int) -> tuple[frozenset[int], ...]:
    """Sets whose bytes fit, the empty one first (it stands even where the workspace alone is over the budget)."""
    fitting = [(frozenset[int](), 0)]
    for draft, size in sizes.items():
        fitting += [(held | {draft}, used + size) for held, used in fitting if used + size <= free_bytes]
        if len(fitting) > MOST_SETS:
            raise UserError(
                f"oracle_budget follows at most {MOST_SETS} sets of drafts, got more from {len(sizes)} drafts in "
                f"{free_bytes} bytes: give it a smaller budget or fewer drafts"
            )
    return tuple(held for held, _ in fitting)
