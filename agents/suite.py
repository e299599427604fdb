"""A suite: every controller over the same held-out streams, on replay or on the real decoder, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from agents.agreement import Agreement, RecordingController, replay_agreement
from agents.baselines import tuned_baselines
from agents.evaluation import Factory, StreamResult, evaluate
from agents.oracle import oracle_results
from agents.report.console import print_report
from agents.report.files import write_report
from agents.report.revision import git_revision
from agents.report.rows import Report, build_rows
from agents.setup import Setting
from envs.live import LiveWorld
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.bundle import library_versions
from runtime.errors import UserError
from runtime.files import write_json

HELDOUT_SEED = 40_000
"""Held-out streams are drawn with this seed plus the run's."""


def run_suite(
    config: DictConfig, setting: Setting, policies: Mapping[str, Factory], out: Path, live: LiveWorld | None = None
) -> Report:
    """Judge policies and every baseline; print the table and write the report.

    Args:
        config: Composed configuration; ``config.suite`` says how much.
        setting: What the run works with.
        policies: Policies by name, besides the baselines.
        out: Folder of the report.
        live: The real decoder; None = replay.
    """
    suite = config.suite
    streams_wanted = 1 if config.dry_run else suite.streams
    baselines, tuned = tuned_baselines(
        setting, 1 if config.dry_run else suite.tuning_streams, config.seed, config.progress
    )
    factories = chosen({**baselines, **policies}, suite.controllers)
    heldout = setting.heldout
    if suite.requests is not None:
        heldout = replace(heldout, workload=replace(heldout.workload, requests=suite.requests))
    streams = heldout.streams(HELDOUT_SEED + config.seed, streams_wanted)
    if live is None:
        results = evaluate(factories, streams, heldout.session, config.seed, progress=config.progress)
        results += oracle_results(streams, heldout.bank, config.seed)
    else:
        results = _on_the_device(config, heldout, factories, live, streams, out)
    report = Report(
        suite=suite.name,
        device=setting.profile.device,
        simulated=setting.profile.simulated,
        git=git_revision(),
        versions=library_versions("torch", "transformers", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy"),
        rows=build_rows(results, suite.resamples, config.seed),
        replay=live is None,
        streams=len(streams),
        resamples=suite.resamples,
    )
    out.mkdir(parents=True, exist_ok=True)
    write_report(report, out)
    write_json(
        out / "tuning.json",
        {
            "schema": 1,
            "tuned": [
                {"name": t.name, "gamma": t.gamma, "stop": t.stop, "tokens_per_s": t.tokens_per_s} for t in tuned
            ],
        },
    )
    print_report(report)
    return report


def chosen(factories: Mapping[str, Factory], names: Sequence[str] | None) -> dict[str, Factory]:
    """The controllers to judge; ``plain`` is always among them.

    Raises:
        UserError: If a name is not known.
    """
    if names is None:
        return dict(factories)
    unknown = set(names) - set(factories) - {"policy"}
    if unknown:
        raise UserError(f"suite.controllers: no {', '.join(sorted(unknown))}; expected some of {', '.join(factories)}")
    return {name: make for name, make in factories.items() if name == "plain" or name in names}


def _on_the_device(
    config: DictConfig,
    heldout: ReplayWorld,
    factories: Mapping[str, Factory],
    live: LiveWorld,
    streams: tuple[Stream, ...],
    out: Path,
) -> list[StreamResult]:
    """Run everything on the real models; then ask replay what the same decisions would have taken."""
    recorders = {name: RecordingController(make()) for name, make in factories.items()}
    recorded: dict[str, Factory] = {name: (lambda r=recorder: r) for name, recorder in recorders.items()}  # type: ignore[misc]
    try:
        results = evaluate(recorded, streams, live.session, config.seed, reference="plain", progress=config.progress)
    finally:
        live.close()
    agreements: list[Agreement] = [
        replay_agreement(name, recorder, streams, heldout.session, results) for name, recorder in recorders.items()
    ]
    live_s, replay_s = sum(a.live_s for a in agreements), sum(a.replay_s for a in agreements)
    write_json(
        out / "replay_agreement.json",
        {
            "schema": 1,
            "live_s": live_s,
            "replay_s": replay_s,
            "ratio": replay_s / live_s,
            "controllers": [a._asdict() for a in agreements],
        },
    )
    print(
        f"replay of the same decisions: {replay_s:.1f} s predicted, {live_s:.1f} s live, ratio {replay_s / live_s:.3f}"
    )
    return results
