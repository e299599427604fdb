"""The heuristics a policy is judged against, each in its best setting on training streams.

What is tuned is listed here: every baseline has options, all are tried on the same training streams, the fastest is
taken. Held-out streams are never seen. A report may ask for some baselines only; the others are not tuned then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from agents.bandits import EpsilonGreedyController, Exp3Controller, ThompsonController, UcbController
from agents.hedge import HedgeController
from runtime.control.adaedl import AdaEdlController
from runtime.control.base import Controller
from runtime.control.dynamic import HfDynamicController
from runtime.control.memspec import MemSpecController
from runtime.control.memspec_ablations import MemSpecNoMemoryController, MemSpecNoPredictionController
from runtime.control.rakv_asd import RakvAsdController
from runtime.control.stacked import StackedController
from runtime.control.static import StaticController, plain_controller
from runtime.core import GAMMAS, STOP_LEVELS, DraftSpec
from runtime.profile import CostModel

Make = Callable[[CostModel], Controller]
LENGTHS = tuple((gamma, 0) for gamma in GAMMAS)
"""Lengths without a stop: as MemSpec was published."""
STOPPED = tuple(product(GAMMAS[1:], range(1, len(STOP_LEVELS))))
"""Lengths with a stop; a single guess needs none."""
FEW = ((1, 0), (2, 0), (4, 1), (4, 2), (8, 1), (8, 2))
"""Settings for the many that are less often near the top: those of ``LENGTHS`` and ``STOPPED`` that win somewhere."""


class Option(NamedTuple):
    """One setting of a baseline: draft length and stop level (as far as it has them), and how it is built."""

    gamma: int
    stop: int
    make: Make


@dataclass(frozen=True)
class Baseline:
    """A baseline with all its settings.

    Attributes:
        name: In reports.
        options: Settings to be tried; a single one is not tuned.
    """

    name: str
    options: tuple[Option, ...]


def statics(specs: Sequence[DraftSpec]) -> list[Baseline]:
    """Every draft alone, named ``static:<draft>``."""
    return [
        Baseline(
            f"static:{spec.name}",
            _grid(StaticController, FEW, n_drafts=len(specs), draft=index, name=f"static:{spec.name}"),
        )
        for index, spec in enumerate(specs)
    ]


def baselines(specs: Sequence[DraftSpec], strongest: int, seed: int) -> list[Baseline]:
    """All but the statics.

    Args:
        specs: Drafts of the zoo.
        strongest: Draft of the best static: for baselines that have only one.
        seed: Of those that draw.
    """
    n = len(specs)
    expected = tuple(spec.expected for spec in specs)
    models = [index for index, spec in enumerate(specs) if spec.loadable] or [strongest]
    model = strongest if strongest in models else max(models, key=lambda index: specs[index].expected)
    found = [
        _alone("plain", lambda costs: plain_controller(n)),
        _alone("plain_reuse", lambda costs: plain_controller(n, reuse_kv=True)),
        Baseline(
            "hf_dynamic",
            tuple(
                Option(
                    start, stop, _free(HfDynamicController, n_drafts=n, draft=model, start=start, stop=stop, constant=c)
                )
                for start, stop, c in ((5, 0, False), (5, 2, False), (8, 2, True), (8, 3, True), (8, 1, True))
            ),
        ),
        Baseline(
            "adaedl",
            tuple(
                Option(GAMMAS[-1], stop, _free(AdaEdlController, n_drafts=n, draft=model, stop=stop, **target))
                for stop, target in product(range(1, len(STOP_LEVELS)), ({}, {"target": None}))
            ),
        ),
        Baseline("memspec", _grid(MemSpecController, LENGTHS, n_drafts=n)),
        Baseline("memspec_stop", _grid(MemSpecController, STOPPED, n_drafts=n, name="memspec_stop")),
        Baseline("memspec_no_memory", _grid(MemSpecNoMemoryController, FEW, n_drafts=n)),
        Baseline("memspec_no_prediction", _grid(MemSpecNoPredictionController, FEW, expected=expected)),
        Baseline(
            "rakv_asd",
            tuple(
                Option(0, 0, partial(_with_costs, RakvAsdController, n_drafts=n, draft=draft))
                for draft in dict.fromkeys((strongest, model))
            ),
        ),
        _stacked(n, plus=False),
        _stacked(n, plus=True),
    ]
    return [*found, *_fixed(n, strongest), *_bandits(n, seed)]


def _stacked(n: int, plus: bool) -> Baseline:
    options = (
        Option(gamma or 0, stop, partial(_with_costs, StackedController, n_drafts=n, gamma=gamma, stop=stop, plus=plus))
        for gamma, stop in ((None, 0), (None, 1), (None, 2), *LENGTHS[1:], *STOPPED)
    )
    return Baseline("stacked_plus" if plus else "stacked", tuple(options))


def _fixed(n: int, draft: int) -> list[Baseline]:
    """One draft, one length, no stop: RAKV-ASD's menu. ``bypass`` takes no stored prefix."""
    menu = [(f"fixed:{gamma}", gamma, True) for gamma in GAMMAS] + [("fixed:4:bypass", 4, False)]
    return [
        _alone(name, _free(StaticController, n_drafts=n, draft=draft, gamma=gamma, reuse_kv=reuse, name=name))
        for name, gamma, reuse in menu
    ]


def _bandits(n: int, seed: int) -> list[Baseline]:
    found = []
    for make in (EpsilonGreedyController, UcbController, Exp3Controller, ThompsonController):
        found.append(Baseline(make.kind, _grid(make, FEW, n_drafts=n, seed=seed)))
        found.append(Baseline(f"{make.kind}_resident", _grid(make, FEW, n_drafts=n, seed=seed, resident_only=True)))
    return [*found, Baseline("hedge", _grid(HedgeController, FEW, n_drafts=n))]


def _alone(name: str, make: Make) -> Baseline:
    return Baseline(name, (Option(0, 0, make),))


def _grid(make: Any, settings: Sequence[tuple[int, int]], **fixed: Any) -> tuple[Option, ...]:
    """One option for each (gamma, stop)."""
    return tuple(Option(gamma, stop, _free(make, gamma=gamma, stop=stop, **fixed)) for gamma, stop in settings)


def _free(make: Any, **values: Any) -> Make:
    """A controller that asks for no costs."""
    return lambda costs: make(**values)


def _with_costs(make: Any, costs: CostModel, **values: Any) -> Controller:
    controller: Controller = make(costs=costs, **values)
    return controller
