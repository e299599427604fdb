"""The exported policy on the real decoder: the same text as plain decoding, and how fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tqdm import tqdm

from envs.live import LiveWorld
from runtime.control.base import Controller
from runtime.control.static import plain_controller
from runtime.core import Counters, Request


@dataclass(frozen=True)
class LiveCheck:
    """What came out.

    Attributes:
        prompts: Held-out prompts answered by both.
        identical: Whether all texts were the same, token for token.
        tokens: Tokens committed by each.
        policy_s: Seconds under the policy.
        plain_s: Seconds under plain decoding.
        stall_s: Seconds the policy waited for a load.
        loads: Background loads under the policy.
        rounds_while_loading: Rounds the policy committed while a load was in flight.
    """

    prompts: int
    identical: bool
    tokens: int
    policy_s: float
    plain_s: float
    stall_s: float
    loads: int
    rounds_while_loading: int

    @property
    def speedup(self) -> float:
        """Plain seconds / policy seconds."""
        return self.plain_s / self.policy_s


def live_check(
    world: LiveWorld, policy: Callable[[], Controller], requests: tuple[Request, ...], progress: bool
) -> LiveCheck:
    """Answer the same requests, in the same order, under plain decoding and under the policy."""
    plain_texts, plain, _ = _answer(world, plain_controller(len(world.models.zoo.drafts)), requests, progress)
    texts, counters, busy = _answer(world, policy(), requests, progress)
    return LiveCheck(
        prompts=len(requests),
        identical=texts == plain_texts,
        tokens=sum(map(len, texts)),
        policy_s=counters.seconds,
        plain_s=plain.seconds,
        stall_s=counters.stall_s,
        loads=counters.loads,
        rounds_while_loading=busy,
    )


def _answer(
    world: LiveWorld, controller: Controller, requests: tuple[Request, ...], progress: bool
) -> tuple[list[list[int]], Counters, int]:
    """(token ids of every answer, counters, rounds while a load was in flight)."""
    session = world.session()
    texts: list[list[int]] = [[]]
    busy = 0
    session.start(requests)
    controller.begin_stream()
    bar = tqdm(total=len(requests), desc=f"live, {controller.name}", unit="prompts", disable=not progress)
    finished = False
    while not finished:
        observation = session.observe()
        outcome = session.advance(controller.decide(observation))
        controller.learn(outcome)
        busy += outcome.round is not None and observation.value("loads_in_flight") > 0
        texts[-1] += outcome.tokens
        if outcome.request_finished:
            texts.append([])
            bar.update()
        finished = outcome.stream_finished
    bar.close()
    return texts[:-1], session.counters, busy
