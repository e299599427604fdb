"""On which engine a bundle runs here, and what work costs on it."""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from runtime.bundle import Bundle
from runtime.device import device_profile
from runtime.engine.opening import ENGINES, TargetChoice, choose_engine
from runtime.nearness import refuse_unless_near
from runtime.profile import CostModel


class Running(NamedTuple):
    """An engine, and the costs that controllers go by."""

    engine: str
    costs: CostModel


def engine_option(parser: argparse.ArgumentParser) -> None:
    """What runs the target."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="what runs the target (default: auto, the engine that the bundle's costs were measured on)",
    )


def running(options: argparse.Namespace, bundle: Bundle) -> Running:
    """The engine and the costs: the bundle's, unless another engine is asked for.

    Costs of another engine are those kept from an earlier measurement with it, else they are measured now.

    Raises:
        UserError: If a policy is asked for that was trained for other costs, saying how far away they are.
    """
    measured_on = choose_engine(TargetChoice(), bundle.profile.engine)
    engine = choose_engine(TargetChoice(engine=options.engine), bundle.profile.engine)
    profile = bundle.profile
    if engine != measured_on:
        print(f"costs of engine {engine}: as kept, or measured now (once, some minutes)", file=sys.stderr)
        profile = device_profile(bundle.zoo, options.target, options.device, options.threads, engine=engine)
        wanted = str(getattr(options, "controllers", None) or options.controller)
        if "policy" in wanted.split(","):
            refuse_unless_near(bundle.profile, profile)
    return Running(engine, CostModel(profile, bundle.zoo.draft_names))
