"""From configuration to the objects of a run: zoo, profile, worlds. Each function builds one thing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from agents.devices import built_device
from agents.foresight import model_reach
from agents.groups import judged_workload, settings_of, workload_config
from agents.manual import register
from agents.paths import PROJECT as PROJECT
from agents.paths import project_path
from agents.round_table import GuessRow, RoundTable, build_round_table, lookup_row
from agents.settings import AgentSettings
from agents.validation import check, check_traces
from envs.traces import TraceSet
from envs.world import ReplayWorld, WorldConfig
from envs.zoo.fit import recorded_columns
from runtime.control.topic import TopicPredictor
from runtime.core import DraftSpec, MemoryConfig
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.device import device_profile
from runtime.engine.dtypes import AUTO_DTYPE
from runtime.engine.opening import USUAL_DTYPE
from runtime.errors import UserError
from runtime.profile import CostModel, Profile
from runtime.threads import usable_threads
from runtime.zoo import Zoo

register()  # every command that Hydra starts imports this module, so each has its manual page


@dataclass(frozen=True)
class Setting:
    """What a run works with.

    Attributes:
        zoo: The zoo.
        specs: Its drafts as the scheduler sees them.
        profile: The device's costs.
        costs: The same, answering questions.
        topic: The zoo's topic predictor.
        memory: The byte budget.
        train: World of the training split.
        heldout: World of the held-out split; a suite may judge on another device and workload than it trains on.
    """

    zoo: Zoo
    specs: tuple[DraftSpec, ...]
    profile: Profile
    costs: CostModel
    topic: TopicPredictor
    memory: MemoryConfig
    train: ReplayWorld
    heldout: ReplayWorld


def load_zoo(config: DictConfig) -> Zoo:
    """The zoo of the configuration with the drafts it asks for, its files checked."""
    zoo = Zoo.load(project_path(config.zoo.folder))
    zoo = zoo if config.zoo.drafts is None else zoo.only(config.zoo.drafts)
    zoo.verify_files()
    return zoo


def load_profile(config: DictConfig, zoo: Zoo, device: DictConfig | None = None) -> Profile:
    """A device's profile: a given file, one built from ratios, a kept measurement, or a new measurement.

    Args:
        config: The composed configuration.
        zoo: The zoo.
        device: Another device than the configuration's.
    """
    device = config.device if device is None else device
    threads = device.threads or usable_threads()
    if device.profile:
        profile = Profile.load(project_path(device.profile))
    elif device.built:
        ratios = cast(dict[str, Any], OmegaConf.to_container(device.built))
        profile = built_device(ratios).profile(zoo, threads)
    else:
        whole = Zoo.load(zoo.folder)  # measured once, whatever drafts a run asks for
        profile = device_profile(
            whole,
            target=config.zoo.target,
            threads=threads,
            remeasure=device.remeasure,
            progress=config.progress,
            engine=config.engine,
            dtype=USUAL_DTYPE if config.dtype == AUTO_DTYPE else config.dtype,
        )
    return profile if device.load_rounds is None else _with_loads(profile, float(device.load_rounds))


def _with_loads(profile: Profile, rounds: float) -> Profile:
    """Every load takes this many plain decoding steps; such a profile is simulated."""
    load_s = rounds * profile.decode.at(profile.reference_context)
    drafts = {
        name: dataclasses.replace(cost, load_s=load_s if cost.bytes else 0.0) for name, cost in profile.drafts.items()
    }
    return dataclasses.replace(profile, drafts=drafts, simulated=True)


def memory_budget(config: DictConfig, zoo: Zoo, kv_bytes_per_token: int | None = None) -> MemoryConfig:
    """The byte budget of the configuration.

    Args:
        config: The composed configuration.
        zoo: The zoo.
        kv_bytes_per_token: Of the target on its engine; None = as the zoo's manifest says.
    """
    env = config.env
    return zoo.memory(
        env.kv_reserve_tokens, env.budget_drafts, env.budget_kv_tokens, env.disk_kv_tokens, kv_bytes_per_token
    )


def load_traces(config: DictConfig, zoo: Zoo, split: str) -> TraceSet:
    """The zoo's traces of one split; they must be of its target and drafts."""
    path = zoo.folder / config.zoo.traces[split]
    traces = TraceSet.load(path, zoo.target.fingerprint)
    recorded = {ref.name: ref.sha256 for ref in traces.drafts}
    for draft in zoo.drafts:
        if draft.file and recorded.get(draft.name) != draft.sha256:
            raise UserError(
                f"{path}: the traces of draft '{draft.name}' are of another draft file than the zoo's: record them "
                "again with `python -m envs.record`"
            )
    return traces


def prepare(config: DictConfig) -> Setting:
    """Everything a run works with; what is quick to ask is asked before the device is measured.

    Raises:
        UserError: If the configuration, or a file it names, does not work.
    """
    check(config)
    zoo = load_zoo(config)
    traces = {split: load_traces(config, zoo, split) for split in ("train", "heldout")}
    check_traces(config, traces)
    profile = load_profile(config, zoo)
    specs = zoo.specs(config.env.kv_reserve_tokens)
    costs = CostModel(profile, zoo.draft_names)
    topic = TopicPredictor.load(zoo.folder / zoo.topic, zoo.draft_names)
    memory = memory_budget(config, zoo, profile.kv_bytes_per_token)
    world = WorldConfig(memory, config.env.decision_interval, config.env.max_steps)
    judged_costs = costs
    if config.suite.judged_device is not None:
        judged_costs = CostModel(load_profile(config, zoo, config.suite.judged_device), zoo.draft_names)
    train, heldout = (
        ReplayWorld(traces[split], specs, world_costs, topic, world, workload_config(workload), split)
        for split, world_costs, workload in (
            ("train", costs, config.workload),
            ("heldout", judged_costs, judged_workload(config)),
        )
    )
    return Setting(zoo, specs, profile, costs, topic, memory, train, heldout)


def agent_settings(config: DictConfig) -> AgentSettings:
    """The agent's hyperparameters, the whole configuration checked; a dry run's are tiny.

    Raises:
        UserError: If the configuration does not fit together.
    """
    check(config)
    settings = settings_of(config.agent)
    if config.dry_run:
        return dataclasses.replace(
            settings,
            total_timesteps=256,
            n_steps=16,
            batch_size=min(settings.batch_size, 16 * config.env.n_envs),
            eval_every=128,
            eval_streams=1,
            learning_starts=min(settings.learning_starts, 64),
            imitation_streams=1,
            imitation_epochs=1,
        )
    return settings


def round_table(setting: Setting) -> RoundTable:
    """The prior's table, measured on the training traces."""
    world = setting.train
    columns = recorded_columns(world.traces, [s.name for s in setting.specs], [s.loadable for s in setting.specs])
    rows, lookups = [], []
    tables = [np.asarray(table, dtype=np.float64) for table in world.bank.tables]
    drafters = {i: LookupDrafter(spec.calibration) for i, spec in enumerate(setting.specs) if not spec.loadable}
    for trace in world.generator.traces:
        predicted = setting.topic.predict_all((*trace.prompt_ids, *trace.output_ids), len(trace.prompt_ids))[:-1]
        for index, column in enumerate(columns):
            if column is None:
                lookups.append(lookup_row(index, drafters[index], trace.prompt_ids, trace.output_ids))
                continue
            view = world.bank.text(trace.prompt_ids, trace.prompt_id).views[index]
            assert view is not None, "a draft with a column has a view"
            reach = model_reach(view, tables[index], 0.0)
            shift = setting.topic.shift[[trace.prompt_ids[-1], *trace.output_ids[:-1]], index]
            rows.append(GuessRow(index, trace.drafts[column].match, reach, predicted[:, index], shift))
    names = tuple(spec.name for spec in setting.specs)
    return build_round_table(names, tuple(spec.expected for spec in setting.specs), rows, lookups)
