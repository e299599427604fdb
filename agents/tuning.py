"""Tuning: the best setting of every baseline, on training streams only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tqdm import tqdm

from agents.baselines import Baseline, Make, Option, baselines, statics
from agents.evaluation import Factory, tokens_per_s
from agents.heuristic import HeuristicController
from agents.serving import serve
from agents.setup import Setting, round_table
from agents.workers import over_all_cores
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.control.base import Controller

TUNING_SEED = 20_000
"""Tuning streams are drawn with this seed, from the training split."""
STATIC = "static:"
HEURISTIC = "heuristic"


@dataclass(frozen=True)
class Tuned:
    """A baseline in its best setting.

    Attributes:
        name: In reports.
        gamma: Draft length.
        stop: Stop level.
        tokens_per_s: On the tuning streams; 0 if there was nothing to tune.
        make: Builds the controller for a device.
    """

    name: str
    gamma: int
    stop: int
    tokens_per_s: float
    make: Make


def tune(every: Sequence[Baseline], world: ReplayWorld, streams: Sequence[Stream], progress: bool) -> list[Tuned]:
    """The fastest option of every baseline (the first of equals).

    Args:
        every: The baselines.
        world: Training world.
        streams: Training streams, a handful.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If there are no streams.
    """
    if not streams:
        raise ValueError("expected training streams to tune on, got none")
    jobs = [(b, option) for b, each in enumerate(every) if len(each.options) > 1 for option in range(len(each.options))]

    def try_out(job: tuple[int, int]) -> float:
        return rate(every[job[0]].options[job[1]].make(world.costs), streams, world)

    world.bank  # noqa: B018 - made ready once, before workers fork
    rates: dict[tuple[int, int], float] = {}
    for index, value in tqdm(
        over_all_cores(try_out, jobs), total=len(jobs), desc="tuning baselines", unit="settings", disable=not progress
    ):
        rates[jobs[index]] = value
    tuned = []
    for b, each in enumerate(every):
        best = max(range(len(each.options)), key=lambda o, b=b: rates.get((b, o), 0.0))  # type: ignore[misc]
        option = each.options[best]
        tuned.append(Tuned(each.name, option.gamma, option.stop, rates.get((b, best), 0.0), option.make))
    return tuned


def rate(controller: Controller, streams: Sequence[Stream], world: ReplayWorld) -> float:
    """Total tokens per second of a controller over some streams."""
    return tokens_per_s([serve(controller, stream, world.session(), controller.name)[0] for stream in streams])


def tuned_baselines(
    setting: Setting, streams: int, seed: int, progress: bool, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, Factory], dict[str, Tuned]]:
    """Baselines by their name in reports, ready for the judged device, and what tuning chose.

    The statics are always tuned: which draft is strongest follows from them. ``best_static`` is the best of them.

    Args:
        setting: What the run works with.
        streams: Training streams to tune on.
        seed: Of baselines that draw.
        progress: Whether to show progress bars.
        wanted: Which names are to be judged; others are left out.
    """
    chosen = setting.train.streams(TUNING_SEED, streams)
    alone = tune(statics(setting.specs), setting.train, chosen, progress)
    best = max(alone, key=lambda found: found.tokens_per_s)
    strongest = [spec.name for spec in setting.specs].index(best.name.removeprefix(STATIC))
    others = [each for each in baselines(setting.specs, strongest, seed) if wanted(each.name)]
    if wanted(HEURISTIC):
        table = round_table(setting)
        others.append(Baseline(HEURISTIC, (Option(0, 0, lambda costs: HeuristicController(table)),)))
    found = {each.name: each for each in tune(others, setting.train, chosen, progress)}
    found |= {f"{each.name}:{each.gamma}": each for each in alone} | {"best_static": best}
    found = {name: each for name, each in found.items() if wanted(name)}
    return {name: partial(each.make, setting.heldout.costs) for name, each in found.items()}, found
