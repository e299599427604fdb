"""``specpilot profile``: measure what work costs on this device."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from runtime.bundle import read_bundle
from runtime.cli.common import add_command, add_model_options, refuse_unless_writable, write_out
from runtime.device import device_profile
from runtime.engine.dtypes import DTYPES
from runtime.engine.opening import USUAL_DTYPE
from runtime.profile import Profile
from runtime.zoo import Zoo

EXAMPLES = (
    "specpilot profile --bundle outputs/latest/bundle --out jetson.json",
    "specpilot profile --zoo envs/zoo/smollm2 --threads 4 --json",
    "specpilot profile --zoo envs/zoo/smollm2 --dtype int8 --out int8.json",
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "profile",
        "measure this device",
        "Measure forwards, guesses, loads and KV copies of a zoo on this device. Takes a minute or two.",
        EXAMPLES,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--zoo", type=Path, metavar="DIR", help="folder of a zoo")
    where.add_argument("--bundle", type=Path, metavar="DIR", help="folder of a bundle")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: kept in the cache folder only)"
    )
    parser.add_argument("--json", action="store_true", help="print the whole profile as JSON, as --out writes it")
    add_model_options(parser)
    parser.add_argument(
        "--dtype", default=USUAL_DTYPE, help=f"what the target runs in: {', '.join(DTYPES)} (default: {USUAL_DTYPE})"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure and print the essentials."""
    zoo = Zoo.load(options.zoo) if options.zoo else read_bundle(options.bundle).zoo
    zoo.verify_files()
    if options.out:
        refuse_unless_writable(options.out)
    profile = device_profile(
        zoo,
        options.target,
        options.device,
        options.threads,
        remeasure=True,
        engine=options.engine,
        dtype=options.dtype,
    )
    if options.out:
        write_out(options.out, profile.to_json())
    print(json.dumps(profile.to_json(), indent=1) if options.json else summary(profile))
    return 0


def summary(profile: Profile) -> str:
    """The essentials as text."""
    decode_s = profile.decode.at(profile.reference_context)
    widths = "  ".join(f"{w}: {profile.forward.at(w) / decode_s:.2f}" for w in (2, 3, 5, 9))
    lines = [
        f"device   {profile.device}, {profile.engine}, {profile.dtype}, {profile.threads} threads",
        f"decode   {decode_s * 1e3:.1f} ms at context {profile.reference_context}",
        f"verify   width / plain step  {widths}",
        f"loading  decode x{profile.decode_slowdown:.2f}, load x{profile.load_slowdown:.2f} while both run",
    ]
    for name, cost in profile.drafts.items():
        lines.append(
            f"{name:<11} guess {cost.forward.at(1) / decode_s:.3f} steps, load {cost.load_s / decode_s:.2f} steps"
        )
    return "\n".join(lines)
