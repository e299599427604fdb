"""A client goes away, a draft fails, somebody presses Ctrl-C: what was committed stays right, the next is served.

The rule of mlx-lm: an abandoned generation leaves the cache right, or everything behind it is wrong without a word.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from runtime.core import PLAIN, Decision, Outcome, Phase, Request
from runtime.decoding.live import LiveDecoder
from runtime.engine.base import Logits
from runtime.session import DecodeSession
from tests.factories import make_world
from tests.session.tiny_session import keep_all, open_tiny, text
from tests.tiny import PROMPT, VOCAB, plain_text, request

ALWAYS, SOMETIMES = 0, 2
GUESS = Decision(draft=SOMETIMES, gamma=4, kv=True, wait=True)
OTHER = tuple((3 * i * i + 7) % VOCAB for i in range(20))


def live_of(session: DecodeSession) -> LiveDecoder:
    assert isinstance(session.decoder, LiveDecoder)
    return session.decoder


def rest(session: DecodeSession, decision: Decision = GUESS) -> list[Outcome]:
    """Serve what is left."""
    outcomes = [session.advance(decision)]
    while not outcomes[-1].stream_finished:
        outcomes.append(session.advance(decision))
    return outcomes


def after_forwards(
    session: DecodeSession, count: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Do something just behind the target's or a draft's forward of this number."""
    live, done = live_of(session), 0
    forward, embed = live.target.forward, live.target.embed

    def tick() -> None:
        nonlocal done
        done += 1
        if done == count:
            act()

    def watched_forward(tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        rows = forward(tokens, logits)
        tick()
        return rows

    def watched_embed(tokens: Sequence[int]) -> torch.Tensor:
        rows = embed(tokens)
        tick()
        return rows

    monkeypatch.setattr(live.target, "forward", watched_forward)
    monkeypatch.setattr(live.target, "embed", watched_embed)


def assert_right_cache(session: DecodeSession) -> None:
    """The target's cache is that of a target which never saw a guess."""
    live = live_of(session)
    stored = live.stored_tokens()
    assert live.target.length == len(stored)
    (got,) = live.store(0, len(stored), len(stored))
    fresh, _ = open_tiny()
    live_of(fresh).target.forward(stored, "last")
    (expected,) = live_of(fresh).store(0, len(stored), len(stored))
    for one, other in zip(got.layers, expected.layers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("forwards", [1, 2, 3, 4, 5, 6, 7, 12])
def test_a_request_may_be_cancelled_anywhere(forwards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the prefill (1), between draft steps, before and behind the verification: from another thread."""
    session, _ = open_tiny()
    session.start([request(30), Request("next", OTHER, 10), request(12)])

    def cancel() -> None:
        thread = threading.Thread(target=session.cancel)
        thread.start()
        thread.join()

    after_forwards(session, forwards, cancel, monkeypatch)
    outcomes = [session.advance(GUESS)]
    while not outcomes[-1].cancelled:
        outcomes.append(session.advance(GUESS))
    assert session.phase is Phase.COMPLETE
    committed = text(outcomes)
    assert committed == plain_text()[: len(committed)] and len(committed) < 30
    if forwards == 1:
        assert committed == () and live_of(session).stored_tokens() == PROMPT[:-1]
    assert_right_cache(session)
    left = rest(session)
    assert [o.phase for o in left[:2]] == [Phase.COMPLETE, Phase.ADMIT]
    assert left[0].request_finished and not any(o.cancelled for o in left)
    assert text(left) == (*plain_text(10, OTHER), *plain_text()[:12])
    counters = session.counters
    assert counters.cancelled == 1
    assert counters.committed == counters.admitted + counters.accepted + counters.corrections


def test_the_prompt_of_a_cancelled_request_may_be_kept() -> None:
    session, _ = open_tiny()
    prompt = (*OTHER, *PROMPT, *OTHER)
    asked = Request("long", prompt, 20)
    session.start([asked, asked])
    session.advance(GUESS)
    session.advance(GUESS)
    assert session.cancel("long")
    assert session.advance(GUESS).tokens == ()
    done = session.advance(keep_all(session))
    assert done.kv is not None and done.kv.retained_tokens > 0
    left = rest(session, keep_all(session))
    assert left[0].reused_tokens > 0 and text(left) == plain_text(20, prompt)


@pytest.mark.parametrize("started", [False, True])
def test_a_request_cancelled_before_its_prefill_forwards_nothing(
    started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = open_tiny()
    asked = [request(8)] if started else []
    session.start([*asked, Request("gone", OTHER, 8), request(8)])
    while session.request is not None and session.request.request_id != "gone":
        session.advance(GUESS)
    widths: list[int] = []
    forward = live_of(session).target.forward
    with monkeypatch.context() as patch:
        patch.setattr(live_of(session).target, "forward", lambda tokens, logits: widths.append(len(tokens)))
        assert session.cancel()
        given_up, completed = session.advance(PLAIN), session.advance(GUESS)
    assert (given_up.phase, given_up.cancelled, given_up.tokens) == (Phase.ADMIT, True, ())
    assert completed.kv is not None and completed.kv.retained_tokens == 0
    assert widths == [] and live_of(session).target.forward == forward
    assert text(rest(session)) == plain_text()[:8]
    assert len(session.counters.ttft_s) == session.counters.admitted


def test_there_may_be_nothing_to_cancel() -> None:
    session, _ = open_tiny()
    assert not session.cancel()
    session.start([request(6), request(6)])
    assert not session.cancel("another")
    while session.phase is not Phase.COMPLETE:
        session.advance(GUESS)
    assert session.cancel()  # its text has ended: nothing is cut
    left = rest(session)
    assert text(left) == plain_text()[:6] and session.counters.cancelled == 0
    assert not session.cancel()
    session.start([request(6)])
    assert text(rest(session)) == plain_text()[:6]


def test_a_replayed_request_may_be_cancelled_too() -> None:
    world = make_world()
    session = world.session()
    stream = world.streams(0, 1)[0]
    session.start(item.request for item in stream)
    session.advance(PLAIN)
    session.cancel()
    given_up = session.advance(PLAIN)
    assert given_up.cancelled and given_up.tokens == () and session.phase is Phase.COMPLETE
    assert session.advance(PLAIN).request_finished and session.counters.committed == 1
    assert session.advance(PLAIN).phase is Phase.ADMIT


class Failing:
    """Raises at calls of these numbers."""

    def __init__(self, error: BaseException, at: tuple[int, ...]) -> None:
        self.error, self.at, self.calls = error, at, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls in self.at:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
@pytest.mark.parametrize("first", [1, 2, 3, 4, 6, 9])
def test_after_a_failure_the_text_goes_on(error: BaseException, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft or the target fails in the middle of a round or of the prefill; the same call again goes on."""
    session, _ = open_tiny()
    session.start([request(20), request(20)])
    failing = Failing(error, (first, first + 3))
    live = live_of(session)
    forward, embed = live.target.forward, live.target.embed

    def failing_forward(tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        rows = forward(tokens, logits)
        failing()
        return rows

    def failing_embed(tokens: Sequence[int]) -> torch.Tensor:
        failing()
        return embed(tokens)

    monkeypatch.setattr(live.target, "forward", failing_forward)
    monkeypatch.setattr(live.target, "embed", failing_embed)
    outcomes: list[Outcome] = []
    failures = 0
    while not outcomes or not outcomes[-1].stream_finished:
        try:
            outcomes.append(session.advance(GUESS))
        except type(error):
            failures += 1
            assert live.target.length == len(live.stored_tokens())
    assert failures == 2
    assert text(outcomes) == plain_text()[:20] * 2
