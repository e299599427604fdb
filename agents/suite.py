"""A suite: every controller over the same held-out streams, on replay or on the real decoder, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from agents.agreement import agreements, write_agreement
from agents.evaluation import Factory, evaluate
from agents.oracle import oracle_results
from agents.pictures import suite_pictures
from agents.pieces import serve_in_pieces
from agents.raw_rows import RUNS, write_runs
from agents.report.console import print_report
from agents.report.files import write_report
from agents.report.revision import git_revision
from agents.report.rows import Report, build_rows
from agents.report.study import study_pictures
from agents.serving import StreamResult
from agents.setup import Setting
from agents.tuning import STATIC, Tuned, tuned_baselines
from envs.live import LiveWorld
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.bundle import library_versions
from runtime.errors import UserError
from runtime.files import write_json

HELDOUT_SEED = 40_000
"""Held-out streams are drawn with this seed plus the run's."""
LIBRARIES = ("torch", "transformers", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy")


class Policy(NamedTuple):
    """A policy to judge: how it is built, and the hash of its graph."""

    make: Factory
    sha256: str


def run_suite(
    config: DictConfig, setting: Setting, policies: Mapping[str, Policy], out: Path, live: LiveWorld | None = None
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
    baselines, tuned = _baselines(config, setting, policies)
    factories = {**baselines, **{name: policy.make for name, policy in policies.items()}}
    heldout = setting.heldout
    if suite.requests is not None:
        heldout = replace(heldout, workload=replace(heldout.workload, requests=suite.requests))
    streams = heldout.streams(HELDOUT_SEED + config.seed, 1 if config.dry_run else suite.streams)
    out.mkdir(parents=True, exist_ok=True)
    if live is None:
        results = evaluate(factories, streams, heldout.session, config.seed, progress=config.progress, workers=0)
        bounds = oracle_results(streams, heldout, config.seed)
    else:
        marks = {name: f"{each.gamma}:{each.stop}" for name, each in tuned.items()}
        marks |= {name: policy.sha256 for name, policy in policies.items()}
        results, bounds = _on_the_device(config, heldout, factories, marks, live, streams, out), []
    profile = setting.heldout.costs.profile
    report = Report(
        suite=suite.name,
        device=profile.device,
        simulated=profile.simulated,
        git=git_revision(),
        versions=library_versions(*LIBRARIES),
        rows=build_rows([*results, *bounds], suite.resamples, config.seed),
        replay=live is None,
        streams=len(streams),
        resamples=suite.resamples,
    )
    pictures = suite_pictures(factories, streams, heldout, config.progress) if live is None else ()
    if suite.studies is not None:
        pictures = (*pictures, *study_pictures(Path(to_absolute_path(suite.studies))))
    write_report(report, out, pictures)
    write_runs(out / RUNS, suite.name, results, streams, live is not None)
    write_json(
        out / "tuning.json",
        {"schema": 1, "tuned": [{k: v for k, v in asdict(t).items() if k != "make"} for t in tuned.values()]},
    )
    print_report(report)
    return report


def _baselines(
    config: DictConfig, setting: Setting, policies: Mapping[str, Policy]
) -> tuple[dict[str, Factory], dict[str, Tuned]]:
    """The baselines that the suite asks for, tuned; ``plain`` is always among them.

    Raises:
        UserError: If the suite asks for a controller that is not known.
    """
    suite, asked = config.suite, config.suite.controllers
    names = None if asked is None else {*asked, "plain"}
    streams = 1 if config.dry_run else suite.tuning_streams

    def wanted(name: str) -> bool:
        return names is None or name in names or (name.startswith(STATIC) and STATIC in names)

    found, tuned = tuned_baselines(setting, streams, config.seed, config.progress, wanted)
    unknown = (names or set()) - set(found) - set(policies) - {"policy", STATIC}
    if unknown:
        raise UserError(
            f"suite.controllers: no {', '.join(sorted(unknown))}; leave it out (null = all) to see every name in the "
            "report"
        )
    return found, tuned


def _on_the_device(
    config: DictConfig,
    heldout: ReplayWorld,
    factories: Mapping[str, Factory],
    marks: Mapping[str, str],
    live: LiveWorld,
    streams: Sequence[Stream],
    out: Path,
) -> list[StreamResult]:
    """Run everything on the real models; then ask replay what the same decisions would have taken."""
    pieces = serve_in_pieces(factories, streams, live, out / "pieces", config.seed, marks, progress=config.progress)
    results = [piece.result for name in factories for piece in pieces[name]]
    replayed = evaluate(factories, streams, heldout.session, config.seed, progress=config.progress, workers=0)
    write_agreement(out, agreements(pieces, streams, heldout.session), results, replayed)
    return results
