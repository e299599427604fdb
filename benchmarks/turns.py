"""Controllers that answer the same held-out requests in turn, on the real decoder.

Every side has a session of its own, so its memory is its own; the target is shared. All sides answer a request before
any goes on to the next, in an order that rotates: a machine that slows down slows all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from agents.pipeline import live_world, open_target
from agents.setup import prepare
from envs.live import LiveWorld
from envs.workload import Stream
from runtime.control.base import Controller
from runtime.session import DecodeSession

SEED = 40_000


class Served(NamedTuple):
    """One request: its text, and seconds from admission to completion."""

    tokens: tuple[int, ...]
    seconds: float


@dataclass
class Side:
    """One controller and what it did.

    Attributes:
        controller: Who decides.
        served: Its answers, in order.
        ends: Answers given by the end of each stream.
    """

    controller: Controller
    served: list[Served] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def answer(self, session: DecodeSession) -> None:
        """The next request of a started session."""
        began_s, finished, tokens = session.clock.now_s(), False, list[int]()
        while not finished:
            outcome = session.advance(self.controller.decide(session.observe()))
            self.controller.learn(outcome)
            tokens += outcome.tokens
            finished = outcome.request_finished
        self.served.append(Served(tuple(tokens), session.clock.now_s() - began_s))


def open_live(overrides: Sequence[str] = ()) -> LiveWorld:
    """The real models over held-out prompts, as a configuration with these overrides gives them."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(__file__).resolve().parents[1] / "conf"), version_base=None):
        config = compose("config", list(overrides))
    setting = prepare(config)
    return live_world(config, setting, open_target(config, setting), "heldout")


def serve(live: LiveWorld, sides: Sequence[Side], stream: Stream, turn: int) -> None:
    """A stream, from fresh memory; ``turn`` rotates who begins."""
    with ExitStack() as opened:
        pairs = [(side, opened.enter_context(live.opened())) for side in sides]
        for side, session in pairs:
            side.controller.begin_stream()
            session.start(item.request for item in stream)
        for i in range(len(stream)):
            first = (turn + i) % len(pairs)
            for side, session in (*pairs[first:], *pairs[:first]):
                side.answer(session)
    for side in sides:
        side.ends.append(len(side.served))


def serve_tokens(live: LiveWorld, sides: Sequence[Side], tokens: int, progress: bool) -> None:
    """Streams until every side has written so many tokens.

    Raises:
        AssertionError: If two sides wrote different texts.
    """
    with tqdm(total=tokens, unit="tokens", disable=not progress) as bar:
        for turn, stream in enumerate(live.streams(SEED, 1000)):
            serve(live, sides, stream, turn)
            texts = [[one.tokens for one in side.served] for side in sides]
            if any(text != texts[0] for text in texts):
                raise AssertionError("the sides wrote different texts")
            done = sum(map(len, texts[0]))
            bar.update(done - bar.n)
            if done >= tokens:
                return
