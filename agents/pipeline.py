"""The whole run: prepare, learn, judge, export, try on the real decoder. ``train.py`` calls ``run``."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agents.export import export_policy
from agents.learning import Learned, learn
from agents.livecheck import LiveCheck, live_check
from agents.settings import AgentSettings
from agents.setup import Setting, agent_settings, prepare, round_table
from agents.suite import Policy, run_suite
from envs.live import LiveWorld
from runtime.bundle import Bundle, read_bundle, write_bundle
from runtime.control.action import ActionCodec
from runtime.control.observation import bounds
from runtime.files import write_json
from runtime.live import LiveModels, open_models

LIVE_SEED = 30_000
"""Live streams are drawn with this seed."""


def run(config: DictConfig, folder: Path) -> None:
    """Train a policy and leave a run folder with a bundle and an evaluation.

    Args:
        config: The composed configuration.
        folder: The run folder; exists.

    Raises:
        UserError: If the configuration or a file it names does not work.
    """
    settings = agent_settings(config)
    setting = prepare(config)
    say(f"profile: {setting.profile.device}, plain step {setting.costs.plain_s(200) * 1e3:.1f} ms")
    models = open_target(config, setting) if config.env.name == "live" else None
    train_world = setting.train if models is None else live_world(config, setting, models, "train")
    table = round_table(setting)
    learned = learn(
        settings,
        setting.train,
        train_world.env,
        config.env.n_envs,
        table,
        folder,
        config.seed,
        config.progress,
    )
    if isinstance(train_world, LiveWorld):
        train_world.close()
    bundle = export(config, setting, settings, learned, folder)
    point_latest(folder)
    policy = Policy(bundle.controller, bundle.policy_sha256)
    run_suite(config, setting, {"policy": policy}, folder / "evaluation")
    if config.live_check and not config.dry_run:
        models = models or open_target(config, setting)
        check = check_live(config, setting, models, bundle)
        write_json(folder / "evaluation" / "live_check.json", {"schema": 1, **asdict(check), "speedup": check.speedup})
        say(describe(check))
    say(f"bundle: {bundle.folder}")


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
    )
    graph.unlink()
    return read_bundle(folder / "bundle")


def open_target(config: DictConfig, setting: Setting) -> LiveModels:
    """The target of the zoo, on as many threads as were profiled."""
    return open_models(setting.zoo, config.zoo.target, threads=config.device.threads or 0)


def live_world(config: DictConfig, setting: Setting, models: LiveModels, split: str) -> LiveWorld:
    """The real decoder on the prompts of a split."""
    world = setting.train if split == "train" else setting.heldout
    return LiveWorld(models, setting.costs, world.config, config.env.kv_reserve_tokens, world.generator)


def check_live(config: DictConfig, setting: Setting, models: LiveModels, bundle: Bundle) -> LiveCheck:
    """The exported policy against plain decoding on held-out prompts."""
    world = live_world(config, setting, models, "heldout")
    requests = [item.request for stream in world.streams(LIVE_SEED, 2) for item in stream]
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
