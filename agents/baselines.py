"""The heuristics a policy is judged against, each tuned on training streams only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tqdm import tqdm

from agents.bandits import EpsilonGreedyController, UcbController
from agents.setup import Setting
from agents.tuning import tune
from runtime.control.base import Controller
from runtime.control.memspec import MemSpecController
from runtime.control.rakv_asd import RakvAsdController
from runtime.control.static import StaticController, plain_controller
from runtime.core import STOP_LEVELS

TUNING_SEED = 20_000
"""Tuning streams are drawn with this seed, from the training split."""

Factory = Callable[[], Controller]


@dataclass(frozen=True)
class Tuned:
    """A baseline with its best setting on the tuning streams.

    Attributes:
        name: Name in reports.
        gamma: Draft length.
        stop: Stop level.
        tokens_per_s: On the tuning streams.
        make: Builds the controller.
    """

    name: str
    gamma: int
    stop: int
    tokens_per_s: float
    make: Factory


def _bind(make: Callable[[int, int], Controller], gamma: int, stop: int) -> Factory:
    return lambda: make(gamma, stop)


def tuned_baselines(
    setting: Setting, streams: int, seed: int, progress: bool
) -> tuple[dict[str, Factory], list[Tuned]]:
    """Every baseline by its name in reports, and what tuning chose."""
    names = tuple(spec.name for spec in setting.specs)
    n, stops = len(names), tuple(range(len(STOP_LEVELS)))
    chosen_streams = setting.train.streams(TUNING_SEED, streams)
    jobs: list[tuple[str, Callable[[int, int], Controller], tuple[int, ...]]] = [
        (
            f"static:{draft}",
            lambda g, s, i=index, d=draft: StaticController(n, i, g, s, name=f"static:{d}:{g}"),  # type: ignore[misc]
            stops,
        )
        for index, draft in enumerate(names)
    ]
    jobs += [
        ("bandit_epsilon", lambda g, s: EpsilonGreedyController(n, g, s, seed=seed), stops),
        ("bandit_ucb", lambda g, s: UcbController(n, g, s), stops),
        ("memspec", lambda g, s: MemSpecController(n, g, s), (0,)),
        ("memspec_stop", lambda g, s: MemSpecController(n, g, s, name="memspec_stop"), stops[1:]),
    ]
    found = []
    for name, make, levels in tqdm(jobs, desc="tuning baselines", disable=not progress):
        best, _ = tune(make, chosen_streams, setting.train.session, stops=levels)
        found.append(Tuned(name, best.gamma, best.stop, best.tokens_per_s, _bind(make, best.gamma, best.stop)))
    best_draft = max((t for t in found if t.name.startswith("static:")), key=lambda t: t.tokens_per_s)
    strongest = names.index(best_draft.name.removeprefix("static:"))
    chosen: dict[str, Factory] = {
        "plain": lambda: plain_controller(n),
        "plain_reuse": lambda: plain_controller(n, reuse_kv=True),
    }
    for tuned in found:
        chosen[f"{tuned.name}:{tuned.gamma}" if tuned.name.startswith("static:") else tuned.name] = tuned.make
    chosen["rakv_asd"] = lambda: RakvAsdController(n, strongest, setting.costs)
    chosen["best_static"] = best_draft.make
    return chosen, found
