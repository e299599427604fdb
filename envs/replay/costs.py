"""The cost model with every answer remembered: a replay asks the same few thousand questions over and over."""

from __future__ import annotations

from runtime.profile import CostModel


class RememberedCosts:
    """What rounds cost. Shared by all decoders of one bank; all answers in seconds.

    Args:
        costs: Where answers come from.
    """

    def __init__(self, costs: CostModel) -> None:
        self.model = costs
        self.overhead_s = costs.profile.round_overhead_s
        self._forward: dict[tuple[int, int], float] = {}
        self._draft: tuple[dict[int, float], ...] = tuple({} for _ in costs.costs)

    def round_s(self, width: int, context: int) -> float:
        """A target forward of ``width`` tokens behind ``context`` tokens, and what else a round takes."""
        answer = self._forward.get((width, context))
        if answer is None:
            answer = self._forward[width, context] = self.model.forward_s(width, context) + self.overhead_s
        return answer

    def draft_s(self, draft: int, width: int) -> float:
        """A forward of a draft over ``width`` tokens."""
        answer = self._draft[draft].get(width)
        if answer is None:
            answer = self._draft[draft][width] = self.model.draft_s(draft, width)
        return answer
