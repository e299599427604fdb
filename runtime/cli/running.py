"""On which engine and in which format a bundle runs here, and what work costs so."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from runtime.bundle import Bundle
from runtime.device import device_profile
from runtime.engine.dtypes import AUTO_DTYPE, refuse_unless_dtype
from runtime.engine.opening import ENGINES, USUAL_DTYPE, TargetChoice, choose_engine, dtype_as_measured
from runtime.nearness import refuse_unless_near
from runtime.profile import CostModel


class Running(NamedTuple):
    """An engine, what the target runs in (a name of ``DTYPES``), and the costs that controllers go by."""

    engine: str
    dtype: str
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
    """Engine, format and costs: the bundle's, unless others are asked for.

    Costs of another engine or format are those kept from an earlier measurement of it, else they are measured now.

    Raises:
        UserError: If there is no such format, or a policy is asked for that was trained for other costs, saying how far
            away they are.
    """
    profile = bundle.profile
    known = choose_engine(TargetChoice(), profile.engine), dtype_as_measured(profile.engine, profile.dtype)
    engine = choose_engine(TargetChoice(engine=options.engine), profile.engine)
    dtype = options.dtype
    if dtype == AUTO_DTYPE:
        dtype = known[1] if engine == known[0] else USUAL_DTYPE
    refuse_unless_dtype(dtype)
    if (engine, dtype) != known:
        profile = device_profile(
            bundle.zoo, options.target, options.device, options.threads, engine=engine, dtype=dtype
        )
        wanted = str(getattr(options, "controllers", None) or options.controller)
        if "policy" in wanted.split(","):
            refuse_unless_near(bundle.profile, profile)
    return Running(engine, dtype, CostModel(profile, bundle.zoo.draft_names))
