"""``specpilot info``: what a bundle is."""

from __future__ import annotations

import argparse
import json
from typing import Any

from runtime.bundle import POLICY, Bundle, read_bundle
from runtime.cli.common import add_bundle_argument, add_command

EXAMPLES = (
    "specpilot info outputs/latest/bundle",
    "specpilot info outputs/latest/bundle --json",
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "info",
        "describe a bundle",
        "Describe a bundle: its policy, zoo, profile and memory budget. Nothing is loaded.",
        EXAMPLES,
    )
    add_bundle_argument(parser)
    parser.add_argument("--json", action="store_true", help="the whole manifest as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the description."""
    bundle = read_bundle(options.bundle)
    print(json.dumps(dict(bundle.manifest), indent=1) if options.json else _describe(bundle))
    return 0


def _decisions(training: Any) -> Any:
    agent = training.get("agent")
    return agent.get("total_timesteps", "?") if isinstance(agent, dict) else "?"


def _describe(bundle: Bundle) -> str:
    zoo, profile, manifest = bundle.zoo, bundle.profile, bundle.manifest
    kind = "simulated" if profile.simulated else "measured"
    lines = [
        f"bundle     {bundle.folder}",
        f"policy     {POLICY}, {(bundle.folder / POLICY).stat().st_size / 1024:.0f} KiB, "
        f"{_decisions(manifest['training'])} decisions of training",
        f"zoo        {zoo.name}: target {zoo.target.sources[0]}",
        f"device     {profile.device} ({kind}; {profile.engine}, {profile.dtype}, {profile.threads} threads)",
        f"budget     {manifest['memory']['budget_bytes'] / 1e6:.1f} MB",
        "drafts",
    ]
    for draft in zoo.drafts:
        cost = profile.drafts[draft.name]
        where = f"{draft.bytes / 1e6:6.1f} MB, load {cost.load_s * 1e3:6.1f} ms" if draft.file else "no weights"
        lines.append(
            f"  {draft.name:<11} acceptance {draft.expected:.2f}, guess {cost.forward.at(1) * 1e3:5.2f} ms, {where}"
        )
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    return "\n".join([*lines, f"made with  {versions}"])
