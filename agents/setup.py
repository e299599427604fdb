"""From configuration to the objects of a run: zoo, profile, worlds. Each function builds one thing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from agents.round_table import GuessRow, RoundTable, build_round_table, lookup_row
from agents.settings import AgentSettings
from envs.traces import TraceSet
from envs.workload import WorkloadConfig
from envs.world import ReplayWorld, WorldConfig
from envs.zoo.fit import recorded_columns
from runtime.control.topic import TopicPredictor
from runtime.core import DraftSpec, MemoryConfig
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.device import device_profile
from runtime.errors import UserError
from runtime.profile import CostModel, Profile
from runtime.threads import usable_threads
from runtime.zoo import Zoo

PROJECT = Path(__file__).resolve().parent.parent


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
        heldout: World of the held-out split.
    """

    zoo: Zoo
    specs: tuple[DraftSpec, ...]
    profile: Profile
    costs: CostModel
    topic: TopicPredictor
    memory: MemoryConfig
    train: ReplayWorld
    heldout: ReplayWorld


def project_path(path: str) -> Path:
    """A path of the configuration; relative ones are taken from the project's folder, whatever the cwd is."""
    return PROJECT / path


def load_zoo(config: DictConfig) -> Zoo:
    """The zoo of the configuration, its files checked."""
    zoo = Zoo.load(project_path(config.zoo.folder))
    zoo.verify_files()
    return zoo


def load_profile(config: DictConfig, zoo: Zoo) -> Profile:
    """The device's profile: a given file, a kept measurement, or a new measurement."""
    if config.device.profile:
        profile = Profile.load(project_path(config.device.profile))
    else:
        profile = device_profile(
            zoo,
            target=config.zoo.target,
            threads=config.device.threads or usable_threads(),
            remeasure=config.device.remeasure,
            progress=config.progress,
        )
    return profile if config.device.load_rounds is None else _with_loads(profile, float(config.device.load_rounds))


def _with_loads(profile: Profile, rounds: float) -> Profile:
    """Every load takes this many plain decoding steps; such a profile is simulated."""
    load_s = rounds * profile.decode.at(profile.reference_context)
    drafts = {
        name: dataclasses.replace(cost, load_s=load_s if cost.bytes else 0.0) for name, cost in profile.drafts.items()
    }
    return dataclasses.replace(profile, drafts=drafts, simulated=True)


def memory_budget(config: DictConfig, zoo: Zoo) -> MemoryConfig:
    """The byte budget of the configuration."""
    env = config.env
    return zoo.memory(env.kv_reserve_tokens, env.budget_drafts, env.budget_kv_tokens, env.disk_kv_tokens)


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
    """Everything a run works with."""
    zoo = load_zoo(config)
    profile = load_profile(config, zoo)
    specs = zoo.specs(config.env.kv_reserve_tokens)
    costs = CostModel(profile, zoo.draft_names)
    topic = TopicPredictor.load(zoo.folder / zoo.topic, zoo.draft_names)
    memory = memory_budget(config, zoo)
    world = WorldConfig(memory, config.env.decision_interval, config.env.max_steps)
    workload = WorkloadConfig(**OmegaConf.to_container(config.workload))  # type: ignore[arg-type]
    train, heldout = (
        ReplayWorld(load_traces(config, zoo, split), specs, costs, topic, world, workload, split)
        for split in ("train", "heldout")
    )
    return Setting(zoo, specs, profile, costs, topic, memory, train, heldout)


def agent_settings(config: DictConfig) -> AgentSettings:
    """The agent's hyperparameters, checked."""
    values = dict(config.agent)
    values["widths"] = tuple(values["widths"])
    try:
        settings = AgentSettings(**values)
    except (TypeError, ValueError) as error:
        raise UserError(f"agent configuration: {error}") from None
    if config.dry_run:
        settings = dataclasses.replace(settings, total_timesteps=256, n_steps=16, eval_every=128, eval_streams=1)
    return settings


def round_table(setting: Setting) -> RoundTable:
    """The prior's table, measured on the training traces."""
    world = setting.train
    columns = recorded_columns(world.traces, [s.name for s in setting.specs], [s.loadable for s in setting.specs])
    rows, lookups = [], []
    drafters = {i: LookupDrafter(spec.calibration) for i, spec in enumerate(setting.specs) if not spec.loadable}
    for trace in world.traces.split("train"):
        predicted = setting.topic.predict_all((*trace.prompt_ids, *trace.output_ids), len(trace.prompt_ids))[:-1]
        for index, column in enumerate(columns):
            if column is None:
                lookups.append(lookup_row(index, drafters[index], trace.prompt_ids, trace.output_ids))
                continue
            draft, (slope, offset) = trace.drafts[column], setting.specs[index].calibration
            raw = draft.probability.clip(1e-5, 1 - 1e-6)
            probability = (1.0 / (1.0 + (raw / (1.0 - raw)) ** -slope * 2.718281828459045**-offset)).astype("float32")
            rows.append(GuessRow(index, draft.match, probability, predicted[:, index]))
    names = tuple(spec.name for spec in setting.specs)
    return build_round_table(names, tuple(spec.expected for spec in setting.specs), rows, lookups)
