"""Does the guard keep its promise on the real decoder, whatever decides?

    python -m benchmarks.floor [--tokens N] [--out FILE]

Held-out requests are answered by plain decoding and, in turn on the same stream, under the guard by random decisions
and by the worst ones. Over all runs of requests with at least 1,000 tokens, the time is compared with plain decoding's
time for the very same requests. Asserts that all texts are the same. Exit status 1 if a run took more than 2% longer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from agents.pipeline import live_world, open_target
from agents.setup import prepare
from benchmarks.random_controller import RandomController
from benchmarks.worst_controller import WorstController
from envs.live import LiveWorld
from envs.workload import Stream
from runtime.bundle import library_versions
from runtime.control.base import Controller
from runtime.control.factory import guard
from runtime.control.floor import ALLOWED_SHARE, WINDOW_TOKENS
from runtime.control.guarded import GuardedController
from runtime.control.static import plain_controller
from runtime.device import device_name
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 1
SEED = 40_000


class Served(NamedTuple):
    """One request: its text, and seconds from admission to completion."""

    tokens: tuple[int, ...]
    seconds: float


@dataclass
class Side:
    """One controller and what it did."""

    controller: Controller
    served: list[Served] = field(default_factory=list)


def serve(live: LiveWorld, side: Side, stream: Stream) -> None:
    """A stream on a fresh session."""
    session, done = live.session(), False
    tokens: list[int] = []
    side.controller.begin_stream()
    session.start(item.request for item in stream)
    began_s = session.clock.now_s()
    while not done:
        outcome = session.advance(side.controller.decide(session.observe()))
        side.controller.learn(outcome)
        tokens += outcome.tokens
        done = outcome.stream_finished
        if outcome.request_finished:
            now_s = session.clock.now_s()
            side.served.append(Served(tuple(tokens), now_s - began_s))
            tokens, began_s = [], now_s


def ratios(side: Sequence[Served], plain: Sequence[Served], window: int) -> list[float]:
    """Time / plain decoding's time of every shortest run of requests with at least ``window`` tokens."""
    tokens = np.cumsum([0, *(len(one.tokens) for one in side)])
    seconds, plain_s = (np.cumsum([0.0, *(one.seconds for one in served)]) for served in (side, plain))
    ends = np.searchsorted(tokens, tokens + window)
    runs = [(begin, int(end)) for begin, end in enumerate(ends) if end < len(tokens)]
    return [float((seconds[end] - seconds[begin]) / (plain_s[end] - plain_s[begin])) for begin, end in runs]


def measure(live: LiveWorld, sides: dict[str, Side], tokens: int, progress: bool) -> None:
    """Serve streams in turn until every side has written so many tokens."""
    with tqdm(total=tokens, unit="tokens", disable=not progress) as bar:
        for stream in live.streams(SEED, 1000):
            for side in sides.values():
                serve(live, side, stream)
            done = sum(len(one.tokens) for one in sides["plain"].served)
            bar.update(done - bar.n)
            if done >= tokens:
                return


def run(tokens: int, out: Path, progress: bool) -> int:
    """Measure and report; returns the exit status."""
    live = open_live()
    drafts, costs = live.models.zoo.specs(live.kv_reserve_tokens), live.costs
    watched: dict[str, Callable[[], Controller]] = {
        "random": lambda: RandomController(drafts, SEED, wait=0.0),
        "worst": lambda: WorstController(drafts),
    }
    sides = {"plain": Side(plain_controller(len(drafts)))}
    sides |= {name: Side(guard(make(), drafts, costs)) for name, make in watched.items()}
    try:
        measure(live, sides, tokens, progress)
    finally:
        live.close()
    texts = {name: [one.tokens for one in side.served] for name, side in sides.items()}
    if any(text != texts["plain"] for text in texts.values()):
        raise AssertionError("texts differ from plain decoding's")
    rows = [describe(name, sides[name], sides["plain"]) for name in watched]
    facts = {"device": device_name(), "versions": library_versions("torch", "transformers")}
    write_json(out, {"schema": SCHEMA, **facts, "tokens": sum(map(len, texts["plain"])), "rows": rows})
    for row in rows:
        print(f"{row['controller']:<8} worst run {row['worst']:.3f} of plain, all {row['mean']:.3f}; {row['guard']}")
    return 0 if all(row["worst"] <= 1.0 + ALLOWED_SHARE for row in rows) else 1


def open_live() -> LiveWorld:
    """The default zoo's real models over its held-out prompts, as a configuration without overrides gives them."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(__file__).resolve().parents[1] / "conf"), version_base=None):
        config = compose("config")
    setting = prepare(config)
    return live_world(config, setting, open_target(config, setting), "heldout")


def describe(name: str, side: Side, plain: Side) -> dict[str, Any]:
    """One row of the report."""
    found = ratios(side.served, plain.served, WINDOW_TOKENS)
    seconds, plain_s = (sum(one.seconds for one in served) for served in (side.served, plain.served))
    assert isinstance(side.controller, GuardedController), "a watched side is guarded"
    return {
        "controller": name,
        "runs": len(found),
        "worst": max(found, default=float("nan")),
        "mean": seconds / plain_s,
        "guard": asdict(side.controller.counters),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--tokens", type=int, default=3000, help="tokens that every side writes (default: 3000)")
    parser.add_argument("--out", type=Path, default=Path("outputs/floor.json"), help="report (default: outputs/...)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    options = parser.parse_args()
    if options.tokens < 2 * WINDOW_TOKENS:
        parser.error(f"--tokens must be at least {2 * WINDOW_TOKENS}: a run has {WINDOW_TOKENS}")
    try:
        return run(options.tokens, options.out, not options.no_progress)
    except UserError as error:
        print(f"benchmarks.floor: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
