"""What the runtime itself takes: nanoseconds of a decision, a round and a token outside model forwards.

    python -m benchmarks.overhead --bundle BUNDLE [--prompts N] [--picture FILE.svg] [--out FILE]

Plain decoding, the stacked heuristics and the policy without and with its guard answer held-out prompts in turn. A
forward is what ``TransformersModel.forward`` and a draft's ``ModelDrafter._forward`` take, from Python's side; all
other time of a step is overhead: observing, deciding, accepting, keeping the books. Prefill and completion are left
out. With ``--picture`` the guarded policy answers once more under a sampler, and a picture of the stacks is drawn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.ours import GUARDED, PLAIN_OURS, POLICY, STACKED, Controlled
from benchmarks.engines.prompts import Prompt, held_out
from benchmarks.engines.setting import TRACES, Options, open_bundle, open_ours
from benchmarks.flame import draw, sampled, tree
from runtime.bundle import library_versions
from runtime.core import Outcome, Phase
from runtime.decoding.drafters.model import ModelDrafter
from runtime.device import device_name
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 1
WATCHED = (PLAIN_OURS, STACKED, POLICY, GUARDED)
CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}
ROOT = "ours:Controlled.answer"
"""The frame that the picture begins with."""


class Stopwatch:
    """Nanoseconds spent in forwards so far.

    Args:
        now_ns: The clock.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.forward_ns, self.now_ns = 0, now_ns

    def timing(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward``, timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began_ns = self.now_ns()
            try:
                return forward(*arguments, **options)
            finally:
                self.forward_ns += self.now_ns() - began_ns

        return timed


@contextmanager
def watched_forwards(now_ns: Callable[[], int]) -> Iterator[Stopwatch]:
    """Forwards of every target and draft are timed inside, by a clock."""
    watch = Stopwatch(now_ns)
    target, draft = TransformersModel.forward, ModelDrafter._forward
    TransformersModel.forward = watch.timing(target)  # type: ignore[method-assign]
    ModelDrafter._forward = watch.timing(draft)  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        TransformersModel.forward = target  # type: ignore[method-assign]
        ModelDrafter._forward = draft  # type: ignore[method-assign]


@dataclass
class Spent:
    """What one controller's rounds took, a value a round, nanoseconds."""

    decide: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    tokens: int = 0

    def note(self, decide_ns: int, step_ns: int, forward_ns: int, outcome: Outcome) -> None:
        """One round."""
        self.decide.append(decide_ns)
        self.step.append(step_ns)
        self.forwards.append(forward_ns)
        self.tokens += len(outcome.tokens)

    def row(self, name: str) -> dict[str, Any]:
        """The figures of the report."""
        decide, step, forwards = (np.array(values) for values in (self.decide, self.step, self.forwards))
        total, outside = decide + step, decide + step - forwards
        return {
            "controller": name,
            "rounds": len(total),
            "tokens": self.tokens,
            "round_ns": float(np.median(total)),
            "forwards_ns": float(np.median(forwards)),
            "decision_ns": float(np.median(decide)),
            "decision_p99_ns": float(np.percentile(decide, 99)),
            "outside_round_ns": float(np.median(outside)),
            "outside_token_ns": float(outside.sum() / self.tokens),
            "share": float(outside.sum() / total.sum()),
        }


def answer(side: Controlled, prompt: Prompt, max_tokens: int, watch: Stopwatch, spent: Spent) -> None:
    """A prompt answered step by step; the rounds are noted."""
    session, controller, now_ns = side.session, side.controller, watch.now_ns
    finished = not session.start([side.request(prompt.tokens, max_tokens)])
    while not finished:
        phase, forwards_ns, began_ns = session.phase, watch.forward_ns, now_ns()
        decision = controller.decide(session.observe())
        decided_ns = now_ns()
        outcome = session.advance(decision)
        stepped_ns = now_ns()
        controller.learn(outcome)
        learned_ns = now_ns()
        if phase is Phase.DECODE:
            decide_ns = decided_ns - began_ns + learned_ns - stepped_ns
            spent.note(decide_ns, stepped_ns - decided_ns, watch.forward_ns - forwards_ns, outcome)
        finished = outcome.stream_finished


def run(options: Options, count: int, max_tokens: int, picture: Path | None, out: Path) -> None:
    """Measure and report."""
    bundle = open_bundle(options.bundle)
    warm, *prompts = held_out(options.traces, bundle.zoo.target.fingerprint, count + 1)
    with ExitStack() as opened:
        contenders, _ = open_ours(options, bundle, opened, floats=False)
        sides = {one.name: one for one in contenders if isinstance(one, Controlled) and one.name in WATCHED}
        spent = {name: Spent() for name in sides}
        for side in sides.values():
            side.answer(warm.tokens, max_tokens)
        with watched_forwards(CLOCKS[options.clock]) as watch:
            for prompt in prompts:
                for name, side in sides.items():
                    answer(side, prompt, max_tokens, watch, spent[name])
                    side.settle()
        if picture is not None:
            with sampled() as stacks:
                for prompt in prompts:
                    sides[GUARDED].answer(prompt.tokens, max_tokens)
            draw(tree(stacks, ROOT), picture, "The guarded policy answering: wall time by stack, from the outside in")
    rows = [spent[name].row(name) for name in sides]
    facts = {
        "device": device_name(),
        "threads": options.used_threads,
        "clock": options.clock,
        "versions": library_versions("torch"),
    }
    write_json(out, {"schema": SCHEMA, **facts, "prompts": count, "max_tokens": max_tokens, "rows": rows})
    for row in rows:
        decision, p99 = row["decision_ns"] / 1e3, row["decision_p99_ns"] / 1e3
        outside, token = row["outside_round_ns"] / 1e3, row["outside_token_ns"] / 1e3
        print(
            f"{row['controller']:<28} round {row['round_ns'] / 1e6:6.2f} ms, decision {decision:6.1f} us "
            f"(p99 {p99:6.1f}), outside forwards {outside:7.1f} us a round, {token:7.1f} us a token, "
            f"{100 * row['share']:.2f}% of all"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--bundle", type=Path, default=Path("outputs/latest/bundle"), help="zoo, memory, policy")
    parser.add_argument("--prompts", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens of an answer (default: 64)")
    parser.add_argument("--traces", type=Path, default=TRACES, help="held-out traces, whose prompts are asked")
    parser.add_argument("--profile", type=Path, help="the device's profile (default: the kept one, else measured)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: all cores)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall",
                        help="cpu: the process's own time, for a machine that others use; with one thread")  # fmt: skip
    parser.add_argument("--picture", type=Path, help="SVG to draw (default: none)")
    parser.add_argument("--out", type=Path, default=Path("outputs/overhead.json"), help="report (default: outputs/...)")
    given = parser.parse_args(arguments)
    options = Options(given.bundle, given.traces, given.profile, "plain", given.threads, given.clock)
    try:
        run(options, given.prompts, given.max_tokens, given.picture, given.out)
    except UserError as error:
        print(f"benchmarks.overhead: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
