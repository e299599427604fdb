"""Whether a configuration fits together, asked before any work. All problems are told at once, each with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agents.baselines import baselines
from agents.devices import built_device
from agents.groups import judged_workload, near, settings_of, workload_config
from agents.limits import ABSENT, outside_limits, value_at
from agents.paths import project_path
from envs.fleet import fleet_plan
from envs.traces import TraceSet
from envs.workload import Workload
from runtime.core import BLOCK_TOKENS
from runtime.engine.dtypes import AUTO_DTYPE, DTYPES
from runtime.engine.opening import AUTO, ENGINES, TRANSFORMERS, USUAL_DTYPE
from runtime.errors import UserError
from runtime.profile import Profile
from runtime.zoo import Zoo

LIVE = "live"
STATIC = "static:"
NOT_TUNED = ("best_static", "heuristic", "policy", STATIC)
"""Names of controllers that a suite may ask for beside ``agents.baselines``."""
ROLLOUTS = ("maskable_ppo", "ppo", "recurrent_ppo")
"""Algorithms that learn from rollouts of ``agent.n_steps`` decisions of every environment."""


def check(config: DictConfig) -> None:
    """Read nothing but the configuration, the zoo's manifest and a profile that is named.

    Raises:
        UserError: Naming every problem: what was expected, what was got, what to do.
    """
    problems = _problems(config)
    for value, changed in _study_points(config, problems):
        problems += [f"at study point {value}: {each}" for each in _problems(changed) if each not in problems]
    refuse(problems)


def check_traces(config: DictConfig, traces: Mapping[str, TraceSet]) -> None:
    """What can only be asked of recorded texts, by split: domains and kinds that exist, answers as long as asked.

    Raises:
        UserError: Naming every problem.
    """
    problems: list[str] = []
    workloads = {"train": config.workload, "heldout": judged_workload(config)}
    for split, workload in workloads.items():
        try:
            Workload(traces[split], split, workload_config(workload))
        except UserError as error:
            problems.append(str(error))
    longest = max(len(trace.output_ids) for each in traces.values() for trace in each.traces)
    asked = [int(workload.max_new_tokens) for workload in workloads.values()]
    asked += [int(changed.workload.max_new_tokens) for _, changed in _study_points(config, problems)]
    if max(asked) > longest:
        problems.append(
            f"workload.max_new_tokens: expected at most {longest}, the longest answer in the zoo's traces, got "
            f"{max(asked)}: ask for fewer tokens, or record longer answers with `python -m envs.record`"
        )
    refuse(problems)


def refuse(problems: Collection[str]) -> None:
    """Raise one ``UserError`` for all problems, if there are any."""
    told = list(dict.fromkeys(problems))
    if len(told) == 1:
        raise UserError(told[0])
    if told:
        lines = "".join(f"\n  {number}. {each}" for number, each in enumerate(told, 1))
        raise UserError(f"{len(told)} problems in the configuration:{lines}")


# -- one configuration -------------------------------------------------------------------------------------------


def _problems(config: DictConfig) -> list[str]:
    """All that is wrong with a configuration, a study's points left aside."""
    missing = OmegaConf.missing_keys(config)
    limits = dict(outside_limits(config))
    problems = [
        f"{key}: expected a value, got none: say `{key}=...`; what it is stands beside `???` in conf/"
        for key in sorted(missing)
    ]
    problems += limits.values()
    bad = {*missing, *limits}
    for rule in RULES:
        values = [value_at(config, key) for key in rule.keys]
        if any(value is ABSENT for value in values) or any(_spoilt(key, bad) for key in rule.keys):
            continue
        try:
            problems += rule.ask(*values)
        except UserError as error:
            problems.append(str(error))
    return problems


def _spoilt(key: str, bad: Collection[str]) -> bool:
    """Whether a key, or one in the group it names, is wrong already."""
    return any(each == key or each.startswith(f"{key}.") for each in bad)


def _study_points(config: DictConfig, problems: list[str]) -> Iterator[tuple[object, DictConfig]]:
    """The configuration at each point of its study, without the study."""
    if "study" not in config:
        return
    for value in config.study.points:
        changed = config.copy()
        try:
            for key in (config.study.key, *(config.study.get("also") or ())):
                OmegaConf.update(changed, key, value)
        except OmegaConfBaseException:
            problems.append(f"study.key: expected a key of the configuration, got '{config.study.key}'")
            return
        OmegaConf.set_struct(changed, False)
        del changed["study"]
        yield value, changed


# -- rules -------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """A question about some keys. It is asked if the configuration has all of them, and each by itself is right."""

    keys: tuple[str, ...]
    ask: Callable[..., Iterator[str]]


def _one_live_environment(env: str, n_envs: int) -> Iterator[str]:
    if env == LIVE and n_envs > 1:
        yield (
            f"env.n_envs: expected 1 with env=live (a device decodes one request at a time), got {n_envs}: say "
            "`env.n_envs=1`, or train with `env=replay`"
        )


def _nothing_batched(env: str, batched: bool) -> Iterator[str]:
    if env == LIVE and batched:
        yield "env.batched: expected false with env=live, got true: leave it out, or train with `env=replay`"


def _no_live_fleet(env: str, device: DictConfig) -> Iterator[str]:
    if env == LIVE and device.get("fleet") is not None:
        yield "device.fleet: expected null with env=live (there is one real device), got a fleet: use `env=replay`"


def _fleet(device: DictConfig) -> Iterator[str]:
    given = device.get("fleet")
    if given is not None:
        fleet_plan(cast(dict[str, Any], OmegaConf.to_container(given)) if isinstance(given, DictConfig) else {})
    yield from ()


def _batched_disk(batched: bool, disk_tokens: float) -> Iterator[str]:
    if batched and disk_tokens:
        yield (
            f"env.disk_kv_tokens: expected 0 with env.batched=true, got {disk_tokens}: say `env.disk_kv_tokens=0` or "
            "`env.batched=false`"
        )


def _kinds_of_env(env: str, suite_env: str) -> Iterator[str]:
    for key, value in (("env.name", env), ("suite.env", suite_env)):
        if value not in (LIVE, "replay"):
            yield f"{key}: expected replay or live, got '{value}'"


def _real_device(env: str, suite_env: str, device: DictConfig) -> Iterator[str]:
    """The real models run on this machine: what is said of it must not be made up."""
    if LIVE not in (env, suite_env):
        return
    where = "env=live" if env == LIVE else "suite.env=live"
    remedy = "say `device=this_machine device.load_rounds=null`, or judge and train on replay"
    if device.built is not None:
        yield f"device.built: expected a measured device with {where}, got '{device.built.name}' from ratios: {remedy}"
    if device.load_rounds is not None:
        yield f"device.load_rounds: expected null with {where}, got {device.load_rounds}: {remedy}"
    if device.profile and Profile.load(project_path(device.profile)).simulated:
        yield f"device.profile: expected a measured profile with {where}, got a simulated one: {remedy}"


def _judged_here(suite_env: str, judged: DictConfig | None) -> Iterator[str]:
    if suite_env == LIVE and judged is not None:
        yield (
            "suite.judged_device: expected null with suite.env=live (the models run on this machine), got a device: "
            "say `suite.judged_device=null`, or `suite.env=replay`"
        )


def _one_origin(device: DictConfig) -> Iterator[str]:
    if device.profile and device.built is not None:
        yield (
            f"device.profile: expected null with the built device '{device.built.name}', got {device.profile}: add "
            "`device=this_machine` to use the profile, or leave it out to use the built device"
        )
    if device.remeasure and (device.profile or device.built is not None):
        yield (
            "device.remeasure: expected false with device.profile or device.built, got true: nothing is measured then; "
            "leave one of them out"
        )
    if device.profile and device.built is None:
        Profile.load(project_path(device.profile))


def _engine(engine: str, device: DictConfig) -> Iterator[str]:
    yield from _as_measured("engine", engine, ENGINES, device)


def _dtype(dtype: str, device: DictConfig) -> Iterator[str]:
    yield from _as_measured("dtype", dtype, (AUTO_DTYPE, *DTYPES), device)


def _as_measured(key: str, value: str, names: Collection[str], device: DictConfig) -> Iterator[str]:
    """A profile is of one engine and one dtype, and a built device of the usual ones."""
    if value not in names:
        yield f"{key}: expected one of {', '.join(names)}, got '{value}'"
    elif value != AUTO and (device.profile or device.built is not None):
        built = device.built is not None
        profile = None if built else Profile.load(project_path(device.profile))
        usual = {"engine": TRANSFORMERS, "dtype": USUAL_DTYPE}[key]
        measured = usual if profile is None else {"engine": profile.engine, "dtype": profile.dtype}[key]
        if value != measured:
            yield (
                f"{key}: expected auto or {measured}, the {key} of device.{'built' if built else 'profile'}, got "
                f"{value}: leave it out, or give another profile (`specpilot profile --{key} {value} --out FILE`)"
            )


def _ratios(device: DictConfig | None) -> Iterator[str]:
    if device is not None and device.built is not None:
        ratios = OmegaConf.to_container(device.built) if isinstance(device.built, DictConfig) else {}
        built_device(cast(dict[str, Any], ratios))
    yield from ()


def _whole_blocks(kv_tokens: float, disk_tokens: float) -> Iterator[str]:
    for key, tokens in (("env.budget_kv_tokens", kv_tokens), ("env.disk_kv_tokens", disk_tokens)):
        if 0 < tokens < BLOCK_TOKENS:
            yield f"{key}: expected 0 or at least {BLOCK_TOKENS}, the tokens of one block of stored KV, got {tokens}"


def _rollouts(algorithm: str, agent: DictConfig, n_envs: int, dry_run: bool) -> Iterator[str]:
    if dry_run or algorithm not in ROLLOUTS:
        return
    rollout = agent.n_steps * n_envs
    if agent.total_timesteps < rollout:
        yield (
            f"agent.total_timesteps: expected at least one rollout, agent.n_steps x env.n_envs = {rollout}, got "
            f"{agent.total_timesteps}: train longer, or say `agent.n_steps={max(2, agent.total_timesteps // n_envs)}`"
        )
    if agent.batch_size > rollout:
        yield (
            f"agent.batch_size: expected at most one rollout, agent.n_steps x env.n_envs = {rollout}, got "
            f"{agent.batch_size}: say `agent.batch_size={rollout}` or less"
        )


def _agent(algorithm: str, agent: DictConfig) -> Iterator[str]:
    settings_of(agent)
    yield from ()


def _workload(workload: DictConfig, changes: DictConfig | None) -> Iterator[str]:
    workload_config(workload)
    if changes is None:
        return
    unknown = [name for name in changes if name not in workload]
    yield from (f"suite.judged_workload: no such key as {near(str(name), list(workload))}" for name in unknown)
    if not unknown:
        workload_config(cast(DictConfig, OmegaConf.merge(workload, changes)))


def _drafts(zoo: DictConfig) -> Iterator[str]:
    _zoo(zoo)
    yield from ()


def _one_draft(actions: str, draft: str | None, zoo: DictConfig) -> Iterator[str]:
    names = _zoo(zoo).draft_names
    if actions == "lengths" and draft not in names and (draft is not None or len(names) > 1):
        yield (
            f"agent.fixed_draft: expected one of {', '.join(names)} with agent.actions=lengths, which works with one "
            f"draft, got {draft}: name it, or keep that draft alone (`zoo.drafts=[{names[0]}]`)"
        )


def _controllers(key: str, zoo: DictConfig, reserve_tokens: int, asked: Collection[str] | None) -> Iterator[str]:
    try:
        specs = Zoo.load(project_path(zoo.folder)).specs(reserve_tokens)
    except UserError:
        return  # told by another rule
    drafts = tuple(f"{STATIC}{spec.name}" for spec in specs)
    known = (*(each.name for each in baselines(specs, 0, 0)), *NOT_TUNED, *drafts)
    for name in asked or ():
        # static:<draft>:<gamma> is what a report calls a draft alone
        if name not in known and not (name.startswith(STATIC) and name.rpartition(":")[0] in drafts):
            yield (
                f"{key}: no {near(name, known)}; leave it out, or judge with `suite.controllers=null` to read all "
                "names in the report"
            )


def _folder(key: str, of: str, path: str | None) -> Iterator[str]:
    if path and not Path(to_absolute_path(path)).is_dir():
        yield f"{key}: expected the folder of {of}, got {path}: no folder is there"


def _zoo(zoo: DictConfig) -> Zoo:
    found = Zoo.load(project_path(zoo.folder))
    return found if zoo.drafts is None else found.only(zoo.drafts)


RULES = (
    Rule(("env.name", "suite.env"), _kinds_of_env),
    Rule(("env.name", "env.n_envs"), _one_live_environment),
    Rule(("env.name", "env.batched"), _nothing_batched),
    Rule(("env.name", "device"), _no_live_fleet),
    Rule(("device",), _fleet),
    Rule(("env.batched", "env.disk_kv_tokens"), _batched_disk),
    Rule(("env.name", "suite.env", "device"), _real_device),
    Rule(("suite.env", "suite.judged_device"), _judged_here),
    Rule(("device",), _one_origin),
    Rule(("engine", "device"), _engine),
    Rule(("dtype", "device"), _dtype),
    Rule(("device",), _ratios),
    Rule(("suite.judged_device",), _ratios),
    Rule(("env.budget_kv_tokens", "env.disk_kv_tokens"), _whole_blocks),
    Rule(("agent.algorithm", "agent"), _agent),  # an experiment of a command that does not train has some keys only
    Rule(("agent.algorithm", "agent", "env.n_envs", "dry_run"), _rollouts),
    Rule(("workload", "suite.judged_workload"), _workload),
    Rule(("zoo",), _drafts),
    Rule(("agent.actions", "agent.fixed_draft", "zoo"), _one_draft),
    Rule(("zoo", "env.kv_reserve_tokens", "suite.controllers"), partial(_controllers, "suite.controllers")),
    Rule(("zoo", "env.kv_reserve_tokens", "study.controllers"), partial(_controllers, "study.controllers")),
    Rule(("policy",), partial(_folder, "policy", "a bundle")),
    Rule(("runs",), partial(_folder, "runs", "a live evaluation")),
    Rule(("suite.studies",), partial(_folder, "suite.studies", "studies")),
)
