"""Controllers that answer the same held-out requests in turn, on the real decoder.

Every side has a session of its own, so its memory is its own; the target is shared. All sides answer a request before
any goes on to the next, in an order that rotates: a machine that slows down slows all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from agents.pipeline import live_world, open_target
from agents.serving import Serving, StreamResult, Texts, answer_in_turn
from agents.setup import prepare
from envs.live import LiveWorld
from envs.workload import Stream
from runtime.control.base import Controller

SEED = 40_000


@dataclass
class Side:
    """One controller and what it did.

    Attributes:
        controller: Who decides.
        results: By stream.
        texts: By stream.
    """

    controller: Controller
    results: list[StreamResult] = field(default_factory=list)
    texts: list[Texts] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """By request."""
        return [tokens for result in self.results for tokens in result.request_tokens]

    @property
    def seconds(self) -> list[float]:
        """By request, from admission to completion."""
        return [seconds for result in self.results for seconds in result.request_s]


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
        servings = [Serving(side.controller, stream, opened.enter_context(live.opened()), "") for side in sides]
        answer_in_turn(servings, len(stream), turn)
        for side, serving in zip(sides, servings, strict=True):
            result, texts = serving.result()
            side.results.append(result)
            side.texts.append(texts)


def serve_tokens(live: LiveWorld, sides: Sequence[Side], tokens: int, progress: bool) -> None:
    """Streams until every side has written so many tokens.

    Raises:
        AssertionError: If two sides wrote different texts.
    """
    with tqdm(total=tokens, unit="tokens", disable=not progress) as bar:
        for turn, stream in enumerate(live.streams(SEED, 1000)):
            serve(live, sides, stream, turn)
            if any(side.texts != sides[0].texts for side in sides):
                raise AssertionError("the sides wrote different texts")
            done = sum(sides[0].tokens)
            bar.update(done - bar.n)
            if done >= tokens:
                return
