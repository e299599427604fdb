"""Memory seen from outside: what a process really holds against its budget. ``make bench-memory``.

A child works, its parent reads ``/proc/<child>/status`` every few milliseconds. What counts is anonymous memory
(``RssAnon``): pages of mapped files can be taken back by the system at any time.

    serving   the same requests are served twice: plain, with room for nothing (what the target needs in any case, its
              own sequence and activations), then with drafts loaded and evicted and the KV store filled:
              overshoot = (highest reading - highest reading of plain) / budget - 1
    cycles    drafts are loaded and evicted in turn over the real loader and manager: what is held must stay flat, and a
              load may pass the draft's own bytes by little

Exit status: 0 = within the limits, 1 = not, 2 = it could not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import statistics
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.exactness.serving import (
    KV_RESERVE_TOKENS,
    ForwardTimer,
    budget_of,
    nominal_costs,
    random_streams,
    serve,
)
from benchmarks.exactness.tally import Tally
from benchmarks.random_controller import RandomController
from benchmarks.watching import Mark, Reading, watch
from envs.traces import TraceSet
from runtime.bundle import library_versions
from runtime.control.base import Controller
from runtime.control.static import plain_controller
from runtime.core import GAMMAS, MemoryConfig, Victim
from runtime.device import device_name
from runtime.engine.base import CausalModel
from runtime.engine.loaded_draft import load_with_one_thread
from runtime.errors import UserError
from runtime.files import write_json
from runtime.live import open_models, open_session
from runtime.loading import FileWork
from runtime.memory.loader import ThreadLoader
from runtime.memory.manager import MemoryManager
from runtime.session import DecodeSession
from runtime.zoo import Zoo

SCHEMA = 1
OVERSHOOT_LIMIT = 0.10
DRIFT_LIMIT = 0.05
"""Of a draft, first quarter of the cycles behind the warm-up against the last. The allocator's heap grows in steps of
about 2% of a draft, once in some hundred loads; a leak of a thousandth of a draft in every load would be 40% here."""
WARM_UP_CYCLES = 20
LONGEST = 640
"""Tokens of the longest sequence while warming: the target's own sequence buffers are there before the rest is read."""
MIB = 1 << 20

# -- what the children do ----------------------------------------------------------------------------------------


def load_and_evict(mark: Mark, folder: Path, names: tuple[str, ...], cycles: int) -> None:
    """Load drafts in turn under a budget of one; a mark behind every load."""
    torch.set_num_threads(1)
    zoo = Zoo.load(folder)
    chosen = [index for index, draft in enumerate(zoo.drafts) if draft.file and (not names or draft.name in names)]
    if not chosen:
        raise UserError(f"zoo '{zoo.name}' has no draft files named {', '.join(names)}")
    specs, costs = zoo.specs(0), nominal_costs(zoo)
    loader = ThreadLoader(
        FileWork.of_zoo(zoo, "cpu", None), [costs.load_s(i) for i in range(len(specs))], load_with_one_thread
    )
    budget = max(spec.bytes for spec in specs) + sum(spec.bytes for spec in specs if not spec.loadable)
    manager = MemoryManager(MemoryConfig(budget), specs, loader, costs)
    manager.load_now(chosen[0], Victim.DRAFTS, 0.0)  # imports what loading needs
    manager.make_room(manager.free_bytes + 1, Victim.DRAFTS, None, 0.0)
    gc.collect()
    mark("empty")
    for cycle in range(cycles):
        draft = chosen[cycle % len(chosen)]
        if manager.resident(draft):
            manager.make_room(manager.free_bytes + 1, Victim.DRAFTS, None, 0.0)
        if not manager.load_now(draft, Victim.DRAFTS, 0.0):
            raise UserError(f"draft '{zoo.drafts[draft].name}' cannot be loaded: {manager.states[draft].failed}")
        mark("loaded", draft=zoo.drafts[draft].name, bytes=manager.payload(draft).weight_bytes)
    manager.make_room(manager.free_bytes + 1, Victim.DRAFTS, None, 0.0)
    mark("evicted")
    loader.close()


def serve_requests(mark: Mark, options: Options, drafts: int, kv_tokens: int) -> None:
    """Warm the target, then serve short answers to long prompts under random decisions."""
    zoo = Zoo.load(options.zoo)
    models = open_models(zoo, options.target, threads=options.threads)
    timer = ForwardTimer(models.target)
    empty, memory = budget_of(models, 0, 0), budget_of(models, drafts, kv_tokens)
    _warm(models.target)
    gc.collect()
    mark("rest")
    with open_session(models, empty, nominal_costs(zoo), KV_RESERVE_TOKENS, 1) as session:
        _serve(session, plain_controller(len(session.drafts)), options, timer)
        mark("plain", budget_bytes=empty.budget_bytes)
    with open_session(models, memory, nominal_costs(zoo), KV_RESERVE_TOKENS, 1) as session:
        controller = RandomController(session.drafts, options.seed, keep=1.0, prefetch=0.8, wait=0.05)
        _serve(session, controller, options, timer)
        counters = session.counters
        facts = {name: getattr(counters, name) for name in ("loads", "evictions", "kv_hit_tokens", "peak_budget_bytes")}
        mark("served", budget_bytes=memory.budget_bytes, requests=options.streams * 6, **facts)


def _serve(session: DecodeSession, controller: Controller, options: Options, timer: ForwardTimer) -> None:
    """Short answers to long prompts; the same requests for every session."""
    names = ("train", "heldout")
    traces = [(name, TraceSet.load(options.zoo / f"traces/{name}.parquet")) for name in names]
    for stream in islice(random_streams(traces, options.seed), options.streams):
        requests = [dataclasses.replace(item.request, max_new_tokens=options.new_tokens) for item in stream]
        serve(session, controller, requests, timer, Tally())


def _warm(target: CausalModel) -> None:
    """A long prompt, and forwards of every width."""
    target.reset()
    target.forward([5 + index % 1000 for index in range(LONGEST)], "last")
    for gamma in GAMMAS:
        target.forward(list(range(5, 6 + gamma)), "all")
    target.reset()


# -- judging -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Options:
    """The command line; see ``--help``."""

    zoo: Path
    target: str | None
    threads: int
    seed: int
    cycles: int
    streams: int
    new_tokens: int
    kv_tokens: tuple[int, ...]
    budgets: tuple[int, ...]


def judge_cycles(readings: list[Reading]) -> dict[str, Any]:
    """What loading and evicting costs; all shares are of the largest draft."""
    empty, last = readings[0], readings[-1]
    loaded = [reading for reading in readings if reading.name == "loaded"]
    settled = loaded[min(WARM_UP_CYCLES, len(loaded) // 3) :]
    quarter = max(1, len(settled) // 4)
    largest = max(reading.facts["bytes"] for reading in loaded)
    extra = [reading.now - empty.now - reading.facts["bytes"] for reading in settled]
    drift = (statistics.median(extra[-quarter:]) - statistics.median(extra[:quarter])) / largest
    over = [(reading.peak - empty.now) / reading.facts["bytes"] for reading in settled]
    return {
        "cycles": len(loaded),
        "largest_draft_bytes": largest,
        "drift": drift,
        "load_peak": max(over),
        "load_peak_median": statistics.median(over),
        "held_over_draft": statistics.median(extra) / largest,
        "left_after_eviction": (last.now - empty.now) / largest,
        "flat": abs(drift) < DRIFT_LIMIT,
    }


def judge_serving(readings: list[Reading]) -> dict[str, Any]:
    """Highest reading of a session, less that of plain serving, against its budget."""
    rest, plain, served = readings
    budget = served.facts["budget_bytes"]
    overshoot = (served.peak - plain.peak) / budget - 1
    return {
        **served.facts,
        "rest_bytes": rest.now,
        "plain_peak_bytes": plain.peak - rest.now,
        "peak_bytes": served.peak - plain.peak,
        "left_bytes": served.now - rest.now,
        "overshoot": overshoot,
        "within": overshoot < OVERSHOOT_LIMIT,
    }


def measure(options: Options) -> dict[str, Any]:
    """Both measurements, printed as they come."""
    cycles = judge_cycles(watch(load_and_evict, options.zoo, (), options.cycles)) if options.cycles else {}
    if cycles:
        print(
            f"{cycles['cycles']} cycles: drift {cycles['drift']:+.2%} of a draft, load peak {cycles['load_peak']:.2f} "
            f"× draft (median {cycles['load_peak_median']:.2f}), held over draft {cycles['held_over_draft']:+.1%}, "
            f"left after eviction {cycles['left_after_eviction']:+.1%}",
            flush=True,
        )
    serving = []
    for drafts in options.budgets:
        for kv_tokens in options.kv_tokens:
            found = judge_serving(watch(serve_requests, options, drafts, kv_tokens))
            serving.append({"drafts": drafts, "kv_tokens": kv_tokens, **found})
            print(
                f"{drafts} drafts + {kv_tokens} tokens: budget {found['budget_bytes'] / MIB:.0f} MiB, peak "
                f"{found['peak_bytes'] / MIB:.0f} MiB, overshoot {found['overshoot']:+.1%} (plain serving "
                f"{found['plain_peak_bytes'] / MIB:.0f} MiB, counted {found['peak_budget_bytes'] / MIB:.0f} MiB, "
                f"{found['loads']} loads, {found['evictions']} evictions, {found['kv_hit_tokens']} KV tokens reused)",
                flush=True,
            )
    passed = cycles.get("flat", True) and all(row["within"] for row in serving)
    return {"cycles": cycles, "serving": serving, "passed": passed}


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--zoo", type=Path, default=Path("envs/zoo/smollm2"), help="folder of the zoo")
    add("--target", default=None, help="another source of the target")
    add("--threads", type=int, default=1, help="torch threads")
    add("--seed", type=int, default=0, help="of streams and decisions")
    add("--cycles", type=int, default=500, help="loads; 0 = none")
    add("--streams", type=int, default=8, help="streams of 6 requests a budget")
    add("--new-tokens", type=int, default=8, help="tokens of an answer")
    add("--kv-tokens", type=int, nargs="+", default=[1000], help="KV in the budget, tokens")
    add("--budgets", type=int, nargs="*", default=[1, 2, 4], help="drafts in the budget")
    add("--out", type=Path, default=Path("outputs/memory.json"), help="file to write")
    values: dict[str, Any] = vars(parser.parse_args())
    out = values.pop("out")
    lists: dict[str, Any] = {name: tuple(values.pop(name)) for name in ("kv_tokens", "budgets")}
    options = Options(**values, **lists)
    try:
        found = measure(options)
    except UserError as error:
        print(f"memory: {error}", file=sys.stderr)
        return 2
    facts = {"device": device_name(), "cores": os.cpu_count(), "versions": library_versions("torch", "transformers")}
    write_json(out, {"schema": SCHEMA, "facts": facts, **found})
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
