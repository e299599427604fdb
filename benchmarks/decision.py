"""What a decision costs: microseconds to observe, to decide and to guard, hot and beside the decoder.

    python -m benchmarks.decision --bundle BUNDLE [--bundle ANOTHER ...] [--onnxruntime] [--floor] [--tokens N]

The real models answer some prompts under the policy and its guard. Between two decisions of a session the models'
forwards use the caches for themselves, so what counts is the first decision behind a forward; a loop of nothing but
decisions, over the observations of that session, is measured for comparison. With several bundles (of one zoo) dice say
from round to round whose policy decides on one session, so that all meet the same machine; the share of rounds in which
they decide alike is told (policies that remember remember more than they should then). With ``--onnxruntime`` every
policy is there twice: as it is deployed, and run by onnxruntime (see ``runtime/control/frozen.py``). With ``--floor``
there is one more: a graph of a single node, always plain decoding, run by onnxruntime. It says what beginning costs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from runtime.bundle import POLICY, Bundle, library_versions, read_bundle
from runtime.cli.common import session_arguments
from runtime.control.action import ActionCodec
from runtime.control.base import Controller
from runtime.control.factory import guard
from runtime.control.frozen import FrozenController
from runtime.control.guarded import GuardedController
from runtime.control.observation import Observation, bounds
from runtime.core import Decision, Outcome, Phase, Request
from runtime.device import device_name
from runtime.errors import UserError
from runtime.files import write_json
from runtime.live import open_models, open_session
from runtime.profile import CostModel
from runtime.session import DecodeSession

SCHEMA = 1
PROMPTS = (
    "Explain why the sky is blue, in a few sentences.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "A train travels 60 km in 45 minutes. How fast is it, in km/h? Show your work.",
    "Tell me a short story about a lighthouse keeper who finds a letter.",
    "List five rivers of Europe and one city on each.",
    "What should I look at when I buy a used bicycle?",
)
LOOP_ROUNDS = 4000
"""Decisions of the hot loop, of each policy."""
FLOOR = "one node"
CLOCKS: dict[str, Callable[[], int]] = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


class TimedController:
    """A controller whose last decision's time is known, in nanoseconds."""

    def __init__(self, inner: Controller, now_ns: Callable[[], int]) -> None:
        self.name, self.inner, self.now_ns, self.took_ns = inner.name, inner, now_ns, 0

    def begin_stream(self) -> None:
        self.inner.begin_stream()

    def decide(self, observation: Observation) -> Decision:
        began_ns = self.now_ns()
        decision = self.inner.decide(observation)
        self.took_ns = self.now_ns() - began_ns
        return decision

    def learn(self, outcome: Outcome) -> None:
        self.inner.learn(outcome)


class Turns:
    """Several policies that decide in turn; ``now`` says whose turn it is."""

    def __init__(self, policies: Mapping[str, Controller], now_ns: Callable[[], int]) -> None:
        self.name = "turns"
        self.policies = {name: TimedController(policy, now_ns) for name, policy in policies.items()}
        self.now = next(iter(self.policies))

    def begin_stream(self) -> None:
        for policy in self.policies.values():
            policy.begin_stream()

    def decide(self, observation: Observation) -> Decision:
        return self.policies[self.now].decide(observation)

    def learn(self, outcome: Outcome) -> None:
        for policy in self.policies.values():
            policy.learn(outcome)


@dataclass
class Times:
    """Nanoseconds of every round that one policy decided, and of the hot loop.

    Attributes:
        observe: Mask and vector.
        policy: ``decide`` of the policy, from observation to decision.
        guard: The guard's part of deciding and learning, without the policy's.
        together: All of these.
        round: The round that followed.
        loop: ``policy`` in the hot loop.
    """

    observe: list[int] = field(default_factory=list)
    policy: list[int] = field(default_factory=list)
    guard: list[int] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    loop: list[int] = field(default_factory=list)


@dataclass
class Session:
    """A session of several policies, what it took and what was seen."""

    session: DecodeSession
    turns: Turns
    guarded: GuardedController
    times: dict[str, Times]
    now_ns: Callable[[], int]
    seen: list[Observation] = field(default_factory=list)
    alike: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def step(self) -> Outcome:
        """One decision, timed if it is about a round."""
        policies, now_ns = self.turns.policies, self.now_ns
        self.turns.now = name = self.dice.choice(list(policies))
        began_ns = now_ns()
        observation = self.session.observe()
        observed_ns = now_ns()
        decision = self.guarded.decide(observation)
        decided_ns = now_ns()
        policy_ns = policies[name].took_ns
        if self.session.phase is Phase.DECODE and len(policies) > 1:  # ahead of the round: it takes the caches again
            decided = {policy.decide(observation) for name, policy in policies.items() if name != FLOOR}
            self.alike += len(decided) == 1
        advanced_ns = now_ns()
        outcome = self.session.advance(decision)
        ended_ns = now_ns()
        self.guarded.learn(outcome)
        learned_ns = now_ns() - ended_ns
        if outcome.phase is Phase.DECODE:
            times, guard_ns = self.times[name], decided_ns - observed_ns - policy_ns + learned_ns
            times.observe.append(observed_ns - began_ns)
            times.policy.append(policy_ns)
            times.guard.append(guard_ns)
            times.together.append(observed_ns - began_ns + policy_ns + guard_ns)
            times.round.append(ended_ns - advanced_ns)
            self.seen.append(observation)
        return outcome


def loop(watched: Session) -> None:
    """Decide over what was seen, in turn, and nothing else."""
    for name, policy in watched.turns.policies.items():
        for index in range(LOOP_ROUNDS + 100):
            policy.decide(watched.seen[index % len(watched.seen)])
            if index >= 100:
                watched.times[name].loop.append(policy.took_ns)


def measure(bundle: Bundle, policies: Mapping[str, Controller], options: argparse.Namespace) -> Session:
    """Answer the prompts under the policies in turn, then loop.

    Args:
        bundle: Zoo, profile and budget of the session.
        policies: By name in the report; all for this zoo.
        options: ``threads``, ``tokens``, ``target``, ``device``, ``clock``, ``no_progress``.
    """
    costs = CostModel(bundle.profile, bundle.zoo.draft_names)
    models = open_models(bundle.zoo, options.target, options.device, options.threads)
    now_ns = CLOCKS[options.clock]
    turns = Turns(policies, now_ns)
    guarded = guard(turns, bundle.zoo.specs(bundle.manifest["memory"]["kv_reserve_tokens"]), costs)
    eos_ids = frozenset(bundle.zoo.target.eos_ids)
    with open_session(models, *session_arguments(bundle, costs)) as session:
        watched = Session(session, turns, guarded, {name: Times() for name in policies}, now_ns)
        guarded.begin_stream()
        for prompt in tqdm(PROMPTS, unit="prompts", disable=options.no_progress):
            session.start([Request("prompt", tuple(models.encode(prompt)), options.tokens, eos_ids)])
            while not watched.step().stream_finished:
                pass
    loop(watched)
    return watched


def describe(times: Times) -> dict[str, Any]:
    """Microseconds by part: median, 90th and 99th percentile; share of the round's time."""
    row: dict[str, Any] = {"rounds": len(times.round), "round_ms": float(np.median(times.round)) / 1e6}
    for name, values in asdict(times).items():
        if name != "round":
            row[name] = {f"p{level}": float(np.percentile(values, level)) / 1e3 for level in (50, 90, 99)}
    for name in ("policy", "together"):
        row[f"{name}_share"] = float(np.sum(getattr(times, name)) / np.sum(times.round))
    return row


def table(rows: Mapping[str, dict[str, Any]]) -> str:
    """The rows for people."""
    lines = [f"{'policy':<14}{'µs':<10}{'p50':>8}{'p90':>8}{'p99':>8}"]
    for name, row in rows.items():
        for part in ("loop", "policy", "observe", "guard", "together"):
            found = row[part]
            lines.append(f"{name:<14}{part:<10}{found['p50']:8.0f}{found['p90']:8.0f}{found['p99']:8.0f}")
        shares = f"policy {row['policy_share']:.2%}, together {row['together_share']:.2%}"
        lines.append(f"{name:<14}{row['rounds']} rounds of {row['round_ms']:.1f} ms; of their time: {shares}")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """Measure and report."""
    bundles = [read_bundle(folder) for folder in options.bundle]
    if len({bundle.zoo.draft_names for bundle in bundles}) > 1:
        raise UserError("--bundle: expected bundles of one zoo, got several: measure them one by one")
    policies = policies_of(bundles, options.onnxruntime)
    if options.floor:
        policies[FLOOR] = one_node(len(bundles[0].zoo.drafts))
    watched = measure(bundles[0], policies, options)
    report(watched, options.out)
    return 0


def policies_of(bundles: Sequence[Bundle], onnxruntime: bool) -> dict[str, FrozenController]:
    """Every bundle's policy by a name of its own; with ``onnxruntime`` once more, run by that."""
    policies = {}
    for index, bundle in enumerate(bundles):
        name, n_drafts = f"{index}:{bundle.folder.resolve().parent.name}"[:13], len(bundle.zoo.drafts)
        policies[name] = bundle.controller(name)
        if onnxruntime:
            name = f"{index}:onnxruntime"
            policies[name] = FrozenController(
                bundle.folder / POLICY, n_drafts, len(bounds(n_drafts)[0]), name, taped=False
            )
    return policies


def one_node(n_drafts: int) -> FrozenController:
    """Always plain decoding, by a graph of one node."""
    from onnx import TensorProto, helper, numpy_helper, save_model  # not needed on a device

    sizes = {"observation": len(bounds(n_drafts)[0]), "mask": ActionCodec(n_drafts).offsets[-1]}
    kinds = {"observation": TensorProto.FLOAT, "mask": TensorProto.BOOL}
    graph = helper.make_graph(
        [helper.make_node("Identity", ["fixed"], ["action"])],
        FLOOR,
        [helper.make_tensor_value_info(name, kinds[name], [1, size]) for name, size in sizes.items()],
        [helper.make_tensor_value_info("action", TensorProto.INT64, [1, 5])],
        [numpy_helper.from_array(np.zeros((1, 5), dtype=np.int64), "fixed")],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "floor.onnx"
        save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return FrozenController(path, n_drafts, sizes["observation"], FLOOR, taped=False)


def report(watched: Session, out: Path) -> None:
    """Write the report and print it."""
    rows = {name: describe(times) for name, times in watched.times.items()}
    facts = {"device": device_name(), "versions": library_versions("torch", "onnxruntime", "numpy")}
    alike = watched.alike / max(1, len(watched.seen))
    write_json(out, {"schema": SCHEMA, **facts, "alike": alike, "rows": rows})
    print(table(rows))
    if len(rows) > 1:
        print(f"they decide alike in {alike:.2%} of {len(watched.seen)} rounds")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a measurement can be told."""
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer (default: 96)")
    parser.add_argument("--target", help="hub id or folder of the target (default: the zoo's own)")
    parser.add_argument("--device", default="cpu", help="torch device of the models (default: cpu)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = all cores")
    parser.add_argument("--onnxruntime", action="store_true", help="also let onnxruntime run every policy")
    parser.add_argument("--floor", action="store_true", help="also run a graph of one node")
    parser.add_argument("--clock", choices=CLOCKS, default="wall",
                        help="cpu: the deciding thread's own time, on a machine that others use")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("outputs/decision.json"), help="report (default: outputs/...)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--bundle", type=Path, action="append", required=True, metavar="DIR",
                        help="folder of a bundle; may be given several times")  # fmt: skip
    add_options(parser)
    try:
        return run(parser.parse_args(arguments))
    except UserError as error:
        print(f"benchmarks.decision: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
