"""What happened in one stream, step by step: for the picture of residency and choices, and for the causes of regret."""

from __future__ import annotations

from dataclasses import dataclass

from envs.workload import Stream
from runtime.control.base import Controller
from runtime.core import Outcome, Phase
from runtime.session import DecodeSession


@dataclass(frozen=True, slots=True)
class Step:
    """One decision and what came of it. Times in seconds on the session's clock, from the start of the stream.

    Attributes:
        request: Index of the request in the stream.
        phase: In which phase it was decided.
        position: Tokens of the request's text before the step; 0 at admission.
        start_s: When the step began.
        end_s: When it ended.
        stall_s: Part of it spent waiting for a load, or for stored KV (admission).
        draft: Draft that guessed; None = plain, or no round.
        gamma: Most guesses allowed; 0 without a draft.
        stop: Stop level.
        steps: Forwards of the draft, catch-up excluded.
        drafted: Guesses verified.
        accepted: Guesses accepted.
        committed: Tokens added to the text.
        catch_up_tokens: Tokens the draft absorbed first.
        reused_tokens: Prompt tokens taken from a stored prefix (admission).
        resident: Drafts usable before the step.
        loading: Drafts on their way before the step.
        kv_bytes: Stored KV held before the step.
        retained_tokens: Tokens whose KV was copied out to be kept (completion).
    """

    request: int
    phase: Phase
    position: int
    start_s: float
    end_s: float
    stall_s: float
    draft: int | None
    gamma: int
    stop: int
    steps: int
    drafted: int
    accepted: int
    committed: int
    catch_up_tokens: int
    reused_tokens: int
    resident: tuple[int, ...]
    loading: tuple[int, ...]
    kv_bytes: int
    retained_tokens: int = 0


@dataclass(frozen=True)
class Timeline:
    """One stream under one controller.

    Attributes:
        controller: Name in reports.
        stream: Index of the stream.
        drafts: Names of the zoo's drafts.
        steps: In order.
    """

    controller: str
    stream: int
    drafts: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """Time of the whole stream."""
        return self.steps[-1].end_s if self.steps else 0.0


def record_timeline(
    controller: Controller, stream: Stream, session: DecodeSession, name: str, index: int = 0
) -> Timeline:
    """Serve one stream on a fresh session and keep what happened.

    Args:
        controller: Decides, and learns.
        stream: The requests.
        session: Fresh.
        name: Controller's name in reports.
        index: Index of the stream.
    """
    steps: list[Step] = []
    request = position = 0
    controller.begin_stream()
    finished = not session.start(item.request for item in stream)
    began_s = session.clock.now_s()
    while not finished:
        step, outcome = _advance(controller, session, request, position, began_s)
        steps.append(step)
        position = 0 if outcome.request_finished else position + outcome.committed
        request += outcome.request_finished
        finished = outcome.stream_finished
    return Timeline(name, index, tuple(spec.name for spec in session.drafts), tuple(steps))


def _advance(
    controller: Controller, session: DecodeSession, request: int, position: int, began_s: float
) -> tuple[Step, Outcome]:
    memory, drafts = session.memory, range(len(session.drafts))
    observation = session.observe()
    start_s = session.clock.now_s() - began_s
    resident = tuple(index for index in drafts if memory.resident(index))
    loading = tuple(index for index in drafts if memory.loading(index))
    kv_bytes = memory.kv.bytes
    outcome = session.advance(controller.decide(observation))
    controller.learn(outcome)
    done = outcome.round
    step = Step(
        request=request,
        phase=outcome.phase,
        position=position,
        start_s=start_s,
        end_s=session.clock.now_s() - began_s,
        stall_s=outcome.stall_s,
        draft=outcome.decision.draft if done else None,
        gamma=outcome.decision.gamma if done else 0,
        stop=outcome.decision.stop,
        steps=done.steps if done else 0,
        drafted=done.drafted if done else 0,
        accepted=done.accepted if done else 0,
        committed=outcome.committed,
        catch_up_tokens=done.catch_up_tokens if done else 0,
        reused_tokens=outcome.reused_tokens,
        resident=resident,
        loading=loading,
        kv_bytes=kv_bytes,
        retained_tokens=outcome.kv.retained_tokens if outcome.kv else 0,
    )
    return step, outcome
