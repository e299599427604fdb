"""An oracle that plays: it knows every guess of every draft in its stream and decides by that. Only to be imitated.

It follows ``oracle_clairvoyant`` as far as residency lets it: among the drafts in memory it takes the round with the
least time for itself and for all that is left, catch-up included. A draft is fetched if, alone with plain decoding, it
would serve the rest of the request in so much less time than those in memory that its load is paid for. Stored KV is
reused wherever it saves time, and kept if a later request of the stream begins with it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from agents.foresight import Foresight, foresee
from agents.oracle import clairvoyant_values
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.control.rules import background, kv_choice, may_prefetch, may_speculate
from runtime.core import GAMMAS, STOP_LEVELS, Decision, Outcome, Phase

LOAD_SHARE = 0.5
"""What a load costs the decoding beside it, in parts of its time."""
SHARED = 16
"""Tokens that a later prompt must share for KV to be worth keeping."""


class _Play(NamedTuple):
    """A round that could be played, and the seconds to the end of the request with it."""

    seconds: float
    draft: int
    gamma: int
    stop: int


class OracleTeacher:
    """Serves one stream of a replay world, knowing it.

    Args:
        world: The world.
        stream: The stream it will serve.
        name: Name in reports.
    """

    def __init__(self, world: ReplayWorld, stream: Stream, name: str = "oracle_teacher") -> None:
        self.name = name
        self._codec = ActionCodec(len(world.drafts))
        self._costs, self._stream = world.costs, stream
        self._ahead = foresee(stream, world.bank)
        self._with_all = [clairvoyant_values(request) for request in self._ahead]
        self._alone = [
            [clairvoyant_values(_only(request, d)) for d in range(len(world.drafts))] for request in self._ahead
        ]
        self._request = 0

    def begin_stream(self) -> None:
        self._request = 0

    def decide(self, observation: Observation) -> Decision:
        at = max(1, int(observation.value("generated_tokens"))) if observation.phase is Phase.DECODE else 1
        rest = background(observation, self._codec, self._wanted(observation, at), reuse_kv=False)
        if observation.phase is Phase.DECODE:
            return self._round(observation, at, rest)
        return rest._replace(kv=self._kv(observation))

    def learn(self, outcome: Outcome) -> None:
        self._request += outcome.request_finished

    def _round(self, observation: Observation, at: int, rest: Decision) -> Decision:
        """``rest`` with the round that leaves the least time to the end of the request."""
        request, values = self._ahead[self._request], self._with_all[self._request]
        if at >= request.end:
            return rest
        plain_s = float(request.verify_s[0, at] + values[min(at + 1, request.end)])
        best = min(self._plays(observation, at), default=None)
        if best is None or best.seconds >= plain_s:
            return rest
        return rest._replace(draft=best.draft, gamma=best.gamma, stop=best.stop)

    def _plays(self, observation: Observation, at: int) -> list[_Play]:
        request, values = self._ahead[self._request], self._with_all[self._request]
        catch_up = observation.per_draft("catch_up_cost") * self._costs.plain_s(self._costs.profile.reference_context)
        plays = []
        for draft, reach in enumerate(request.drafts):
            if not may_speculate(observation, draft):
                continue
            for index, gamma in enumerate(GAMMAS):
                if not observation.mask[1 + draft * len(GAMMAS) + index]:
                    continue
                for stop in range(len(STOP_LEVELS)):
                    sent = min(int(reach.sent[stop, at]), gamma)
                    after = min(at + min(sent, int(reach.right[at])) + 1, request.end)
                    seconds = reach.round_s + reach.step_s * sent + float(request.verify_s[sent, at]) + values[after]
                    plays.append(_Play(float(seconds + catch_up[draft]), draft, gamma, stop))
        return plays

    def _wanted(self, observation: Observation, at: int) -> int | None:
        """The draft whose load is paid for by the rest of this request, if there is one."""
        alone = self._alone[self._request]
        at = min(at, self._ahead[self._request].end)
        have = [values[at] for d, values in enumerate(alone) if observation.per_draft("resident")[d] > 0]
        plain_s = float(self._ahead[self._request].verify_s[0, at : self._ahead[self._request].end].sum())
        now = min((plain_s, *have))
        gains = [
            (now - values[at] - LOAD_SHARE * self._costs.load_s(draft), draft)
            for draft, values in enumerate(alone)
            if may_prefetch(observation, self._codec, draft)
        ]
        gain, draft = max(gains, default=(0.0, 0))
        return draft if gain > 0.0 else None

    def _kv(self, observation: Observation) -> bool:
        if observation.phase is Phase.ADMIT:
            return kv_choice(observation, self._codec)
        return kv_choice(observation, self._codec) and self._asked_again()

    def _asked_again(self) -> bool:
        """Whether a later request of the stream begins as this one, its answer included."""
        item = self._stream[self._request]
        text = np.array((*item.request.prompt_ids, *item.trace.output_ids))
        for later in self._stream[self._request + 1 :]:
            prompt = np.array(later.request.prompt_ids)
            shared = min(len(text), len(prompt))
            same = text[:shared] == prompt[:shared]
            if (shared if same.all() else int(same.argmin())) >= SHARED:
                return True
        return False


def _only(request: Foresight, draft: int) -> Foresight:
    """The request with one draft."""
    return dataclasses.replace(request, drafts=(request.drafts[draft],))
