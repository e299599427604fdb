"""The whole run: prepare, learn, judge, export, try on the real decoder. ``train.py`` calls ``run``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from agents.checkpoints.folder import Found
from agents.checkpoints.run import differences
from agents.export import export_policy
from agents.learning import Learned, learn
from agents.livecheck import LiveCheck, live_check
from agents.settings import AgentSettings
from agents.setup import Setting, agent_settings, prepare, round_table
from agents.suite import Policy, run_suite
from agents.training import Training
from envs.fleet import fleet_of
from envs.live import LiveWorld
from runtime.bundle import Bundle, read_bundle, write_bundle
from runtime.control.action import ActionCodec
from runtime.control.observation import bounds
from runtime.engine.opening import TargetChoice, choose_engine, dtype_as_measured
from runtime.files import sha256_file, write_json
from runtime.live import LiveModels, open_models

LIVE_SEED = 30_000
"""Live streams are drawn with this plus the run's seed."""


def run(config: DictConfig, folder: Path, found: Found | None = None) -> None:
    """Train a policy and leave a run folder with a bundle and an evaluation.

    Args:
        config: The composed configuration.
        folder: The run folder; exists.
        found: A checkpoint of this run folder to go on from; None = a new run.

    Raises:
        UserError: If the configuration or a file it names does not work.
    """
    settings = agent_settings(config)
    setting = prepare(config)
    say(f"profile: {setting.profile.device}, plain step {setting.costs.plain_s(200) * 1e3:.1f} ms")
    models = open_target(config, setting) if config.env.name == "live" else None
    train_world = setting.train if models is None else live_world(config, setting, models, "train")
    table = round_table(setting)
    given = config.device.get("fleet")
    fleet = None if given is None else fleet_of(setting.train, cast(dict[str, Any], OmegaConf.to_container(given)))
    training = Training(
        settings,
        setting.train,
        train_world.env if fleet is None else fleet.env,
        config.env.n_envs,
        table,
        folder,
        config.seed,
        cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)),
        fingerprints(config, setting),
        batched=bool(config.env.get("batched", False)) and models is None,
        worlds=() if fleet is None else fleet.worlds,
        live=models is not None,
        progress=config.progress,
    )
    say_resumed(found, training)
    try:
        learned = learn(training, None if found is None else found.checkpoint)
    finally:
        if isinstance(train_world, LiveWorld):
            train_world.close()
    bundle = export(config, setting, settings, learned, folder)
    point_latest(folder)
    models = judge(config, setting, bundle, models, folder)
    if config.live_check and not config.dry_run:
        models = models or open_target(config, setting)
        check = check_live(config, setting, models, bundle)
        write_json(folder / "evaluation" / "live_check.json", {"schema": 1, **asdict(check), "speedup": check.speedup})
        say(describe(check))
    say(f"bundle: {bundle.folder}")


def judge(
    config: DictConfig, setting: Setting, bundle: Bundle, models: LiveModels | None, folder: Path
) -> LiveModels | None:
    """Run the configuration's suite over the baselines and the policy; returns the real models if they were needed."""
    policies = {"policy": Policy(bundle.controller, bundle.policy_sha256)}
    if config.suite.env != "live" or config.dry_run:
        run_suite(config, setting, policies, folder / "evaluation")
        return models
    models = models or open_target(config, setting)
    live = live_world(config, setting, models, "heldout")
    try:
        run_suite(config, setting, policies, folder / "evaluation", live)
    finally:
        live.close()
    return models


def export(config: DictConfig, setting: Setting, settings: AgentSettings, learned: Learned, folder: Path) -> Bundle:
    """The trained policy as a bundle; read back and checked."""
    n_drafts = len(setting.specs)
    graph = folder / "policy.onnx"
    export_policy(learned.learner.policy, ActionCodec(n_drafts), len(bounds(n_drafts)[0]), graph)
    memory = {
        "budget_bytes": setting.memory.budget_bytes,
        "workspace_bytes": setting.memory.workspace_bytes,
        "kv_reserve_tokens": config.env.kv_reserve_tokens,
        "decision_interval": config.env.decision_interval,
    }
    training: dict[str, Any] = {
        key: OmegaConf.to_container(config[key], resolve=True) for key in ("env", "workload", "device")
    }
    training["agent"] = dataclasses.asdict(settings)  # what was really used, a dry run's too
    write_bundle(
        folder / "bundle",
        graph,
        setting.zoo,
        setting.profile,
        memory,
        {**training, "seed": config.seed, "validation": [list(point) for point in learned.curve]},
        replace=True,  # a run that went on after its end
    )
    graph.unlink()
    return read_bundle(folder / "bundle")


def fingerprints(config: DictConfig, setting: Setting) -> dict[str, str]:
    """Hashes of what training reads besides the configuration."""
    profile = json.dumps(asdict(setting.profile), sort_keys=True)
    return {
        "target": setting.zoo.target.fingerprint,
        **{f"draft {draft.name}": draft.sha256 for draft in setting.zoo.drafts if draft.file},
        "topic predictor": sha256_file(setting.zoo.folder / setting.zoo.topic),
        "traces": sha256_file(setting.zoo.folder / config.zoo.traces.train),
        "profile": hashlib.sha256(profile.encode()).hexdigest(),
    }


def say_resumed(found: Found | None, training: Training) -> None:
    """Where a run goes on, and what may make it differ from one that was not interrupted."""
    if found is None:
        return
    for line in found.passed_over:
        say(f"passed over: {line}")
    say(f"resumed at {found.checkpoint.decisions} of {training.settings.total_timesteps} decisions: {found.path}")
    for line in differences(found.checkpoint):
        say(f"results may differ: {line}")
    if training.live:
        say("the live environment cannot stand where it stood: it begins a new stream")


def open_target(config: DictConfig, setting: Setting) -> LiveModels:
    """The target of the zoo, on the engine, in the format and with as many threads as were profiled."""
    profile, threads = setting.profile, config.device.threads or 0
    engine = choose_engine(TargetChoice(), profile.engine)
    dtype = dtype_as_measured(profile.engine, profile.dtype)
    return open_models(setting.zoo, config.zoo.target, threads=threads, dtype=dtype, engine=engine)


def live_world(config: DictConfig, setting: Setting, models: LiveModels, split: str) -> LiveWorld:
    """The real decoder on the prompts of a split."""
    world = setting.train if split == "train" else setting.heldout
    return LiveWorld(models, setting.costs, world.config, config.env.kv_reserve_tokens, world.generator)


def check_live(config: DictConfig, setting: Setting, models: LiveModels, bundle: Bundle) -> LiveCheck:
    """The exported policy against plain decoding on held-out prompts."""
    world = live_world(config, setting, models, "heldout")
    requests = [item.request for stream in world.streams(LIVE_SEED + config.seed, 2) for item in stream]
    try:
        return live_check(world, bundle.controller, tuple(requests[: config.suite.live_prompts]), config.progress)
    finally:
        world.close()


def point_latest(folder: Path) -> None:
    """Let ``latest`` beside the date folders lead to this run."""
    outputs = folder.parent.parent
    aside = outputs / f".latest.{os.getpid()}"
    aside.unlink(missing_ok=True)
    aside.symlink_to(folder.relative_to(outputs), target_is_directory=True)
    aside.replace(outputs / "latest")


def describe(check: LiveCheck) -> str:
    """The live check in one paragraph."""
    text = "identical to plain decoding" if check.identical else "NOT identical to plain decoding"
    return (
        f"live: {check.prompts} held-out prompts, {check.tokens} tokens, {text}; {check.speedup:.2f}x plain, "
        f"{check.loads} background loads, {check.rounds_while_loading} rounds committed meanwhile, "
        f"stall {check.stall_s:.3f} s"
    )


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, flush=True)
