"""A working set of drafts, chosen once a stream and brought in behind decoding; and which drafts can guess now."""

from __future__ import annotations

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import may_prefetch, may_speculate
from runtime.core import STOP_LEVELS, Phase

TOLERANCE = 1e-6
"""Shares of the budget are float32: two that differ by less are taken as equal."""


def able_drafts(observation: Observation, n_drafts: int, stop: int) -> list[int]:
    """Resident drafts that can guess now, in order.

    Of a draft without weights it is known beforehand whether it has a guess, and how sure it is of it: it is left out
    where it has none or is less sure of it than ``stop`` asks.

    Source: sleeping experts, Freund, Schapire, Singer and Warmuth 1997.

    Args:
        observation: What is known.
        n_drafts: Drafts of the zoo.
        stop: Stop level of the round.
    """
    weightless, confidence = observation.per_draft("weightless") > 0, observation.per_draft("confidence")
    return [
        draft
        for draft in range(n_drafts)
        if may_speculate(observation, draft)
        and (not weightless[draft] or (confidence[draft] > 0.0 and confidence[draft] >= STOP_LEVELS[stop]))
    ]


class WorkingSet:
    """The best drafts by expected acceptance that fit beside each other.

    Drafts that are resident at the start of a stream stay. The others are taken from the best down while they fit into
    what is free or held by stored KV; a member is loaded as soon as it may be. Stored KV gives way to a member, a draft
    never does. A member that was lost is loaded again under the same rule.

    Args:
        n_drafts: Drafts of the zoo.
    """

    def __init__(self, n_drafts: int) -> None:
        self._codec = ActionCodec(n_drafts)
        self._members: tuple[int, ...] | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """Drafts of the set that need a load, the best first; empty before the first decision about prefetching."""
        return self._members or ()

    def begin_stream(self) -> None:
        """Choose anew at the next decision about prefetching."""
        self._members = None

    def wanted(self, observation: Observation) -> int | None:
        """The member to load now; None if there is none, or none may be loaded without giving up a draft."""
        if observation.value("may_prefetch") == 0.0:
            return None
        if self._members is None:
            self._members = self._chosen(observation)
        room = self._room(observation)
        sizes = observation.per_draft("size_share")
        missing = (d for d in self._members if may_prefetch(observation, self._codec, d) and sizes[d] <= room)
        return next(missing, None)

    def _chosen(self, observation: Observation) -> tuple[int, ...]:
        expected, sizes = observation.per_draft("acceptance"), observation.per_draft("size_share")
        resident = observation.per_draft("resident") > 0
        weightless = observation.per_draft("weightless") > 0
        room = observation.value("free_share") + observation.value("kv_share") + TOLERANCE
        members = []
        for draft in sorted(range(self._codec.n_drafts), key=lambda d: -float(expected[d])):
            if weightless[draft]:
                continue
            if resident[draft]:
                members.append(draft)
            elif may_prefetch(observation, self._codec, draft) and sizes[draft] <= room:
                members.append(draft)
                room -= float(sizes[draft])
        return tuple(members)

    def _room(self, observation: Observation) -> float:
        """Share of the budget that can be had without giving up a draft: a prefix about to be used is held."""
        held = observation.phase is Phase.ADMIT and observation.value("usable_prefix_tokens") > 0
        return observation.value("free_share") + (0.0 if held else observation.value("kv_share")) + TOLERANCE
