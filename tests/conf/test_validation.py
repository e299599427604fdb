"""What does not fit together is told before any work: everything at once, each with what to do."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agents.limits import FLAGS, LIMITS
from agents.paths import PROJECT
from agents.setup import agent_settings
from agents.validation import check, check_traces
from envs.traces import TraceSet
from runtime.errors import UserError
from runtime.profile import Profile
from tests.factories import make_profile
from tests.tiny_zoo import composed

LIVE = ("env=live", "suite=quick")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env.n_envs=0",), r"env\.n_envs: expected at least 1, got 0"),
        (("env.n_envs=two",), r"env\.n_envs: expected a whole number, got 'two'"),
        (("env.n_envs=2.5",), r"env\.n_envs: expected a whole number, got 2\.5"),
        (("env.n_envs=true",), r"env\.n_envs: expected a whole number, got True"),
        (("env.decision_interval=0",), r"env\.decision_interval: expected at least 1, got 0"),
        (("seed=-1",), r"seed: expected at least 0 and at most 4\.29\d*e\+09, got -1"),
        (("device.load_rounds=0",), r"device\.load_rounds: expected above 0, got 0"),
        (("device.threads=half",), r"device\.threads: expected a whole number or null, got 'half'"),
        (("workload.follow_up=2",), r"workload\.follow_up: expected at least 0 and at most 1, got 2"),
        (("progress=maybe",), r"progress: expected true or false, got 'maybe'"),
        (("suite.env=dry",), r"suite\.env: expected replay or live, got 'dry'"),
        ((*LIVE, "env.n_envs=4"), r"env\.n_envs: expected 1 with env=live .* got 4: say `env\.n_envs=1`"),
        ((*LIVE, "env.batched=true"), r"env\.batched: expected false with env=live"),
        (
            ("env.batched=true", "env.disk_kv_tokens=64"),
            r"env\.disk_kv_tokens: expected 0 with env\.batched=true, got 64",
        ),
        (("device=fleet", "device.fleet.load=[2,1]"), r"device\.fleet\.load: expected two factors"),
        ((*LIVE, "device=fleet"), r"device\.fleet: expected null with env=live"),
        ((*LIVE, "device=laptop-gpu"), r"device\.built: expected a measured device with env=live, got 'laptop GPU'"),
        (
            ("suite=joint_live", "device=slow_loads"),
            r"device\.load_rounds: expected null with suite\.env=live, got 2\.7",
        ),
        (("suite=robust", "suite.env=live"), r"suite\.judged_device: expected null with suite\.env=live"),
        (("device=laptop-gpu", "device.profile=/a"), r"device\.profile: .* got /a: add `device=this_machine`"),
        (("dtype=int4",), r"dtype: expected one of auto, float32, .*, got .int4."),
        (("device=laptop-gpu", "dtype=int8"), r"dtype: expected auto or float32, the dtype of device\.built"),
        (("engine=llama",), r"engine: expected one of auto, transformers, llamacpp, got 'llama'"),
        (
            ("device=laptop-gpu", "engine=llamacpp"),
            r"engine: expected auto or transformers, the engine of device\.built",
        ),
        (("device=laptop-gpu", "device.remeasure=true"), r"device\.remeasure: expected false with .* device\.built"),
        (("device.profile=/nowhere/p.json",), r"no profile at /nowhere/p\.json: check the path"),
        (("device=laptop-gpu", "device.built.load=0"), r"device\.built\.load: expected a number above 0, got 0"),
        (("device=laptop-gpu", "device.built.verify=3"), r"device\.built\.verify: expected costs by width as"),
        (
            ("device=laptop-gpu", "~device.built.verify", "+device.built.verify={1:1.0,4:1.1}"),
            r"device\.built\.verify: expected widths up to 9 at least",
        ),
        (("device=laptop-gpu", "~device.built.load"), r"device\.built\.load: missing: expected name, plain_ms"),
        (("device=laptop-gpu", "+device.built.laod=1"), r"device\.built\.laod: no such key: expected name, plain_ms"),
        (("suite=robust", "suite.judged_device.built.kv_copy=-1"), r"device\.built\.kv_copy: expected a number of at"),
        (("env.budget_kv_tokens=31",), r"env\.budget_kv_tokens: expected 0 or at least 32, the tokens of one block"),
        (("env.disk_kv_tokens=1",), r"env\.disk_kv_tokens: expected 0 or at least 32"),
        (("agent.total_timesteps=800",), r"agent\.total_timesteps: .* = 16384, got 800: .* say `agent\.n_steps=100`"),
        (("agent.batch_size=16385",), r"agent\.batch_size: .* = 16384, got 16385: say `agent\.batch_size=16384`"),
        (("agent.algorithm=foo",), r"agent\.algorithm: expected .*maskable_ppo, .* got 'foo'"),
        (("+agent.n_step=1",), r"agent configuration: no such key as 'n_step' \(did you mean 'n_steps'\?\)"),
        (("~agent.widths",), r"agent configuration: 'widths' is missing"),
        (
            ("workload.min_topic_requests=9",),
            r"workload: expected 1 <= min_topic_requests <= max_topic_requests, got 9 and 4",
        ),
        (("+workload.domain=[code]",), r"workload configuration: no such key as 'domain' \(did you mean 'domains'"),
        (
            ("+suite.judged_workload.kind=[rag]",),
            r"suite\.judged_workload: no such key as 'kind' \(did you mean 'kinds'",
        ),
        (("+suite.judged_workload.follow_up=7",), r"workload\.follow_up is a probability, got 7"),
        (("zoo.folder=/nowhere",), r"no zoo manifest at /nowhere/zoo\.json: check the path"),
        (
            ("zoo.drafts=[cod]",),
            r"zoo smollm2: expected some of the drafts code, .*, lookup, got cod: correct zoo\.drafts",
        ),
        (("zoo.drafts=[]",), r"zoo smollm2: expected some of the drafts .* got none"),
        (
            ("agent.actions=lengths",),
            r"agent\.fixed_draft: expected one of code, .* got None: name it, or keep that draft",
        ),
        (
            ("agent.actions=lengths", "agent.fixed_draft=cod"),
            r"agent\.fixed_draft: expected one of code, .* got cod: name",
        ),
        (
            ("suite.controllers=[memspek]",),
            r"suite\.controllers: no 'memspek' \(did you mean 'memspec'\?\); leave it out",
        ),
        (("suite.controllers=['static:cod:4']",), r"suite\.controllers: no 'static:cod:4'"),
        (("zoo=folder",), r"zoo\.folder: expected a value, got none: say `zoo\.folder=\.\.\.`"),
        (("suite.studies=/nowhere",), r"suite\.studies: expected the folder of studies, got /nowhere: no folder"),
    ],
)
def test_it_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=rf"^{message}"):
        agent_settings(composed("config", *overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ("suite.controllers=null",),
        ("suite.controllers=['static:code:4','static:',best_static,heuristic,policy,'fixed:4:bypass']",),
        ("agent.total_timesteps=3", "agent.batch_size=99999", "dry_run=true"),
        ("agent=branching_dqn", "agent.total_timesteps=3000"),
        ("agent.actions=lengths", "agent.fixed_draft=code"),
        ("env.budget_kv_tokens=32",),
        ("env.budget_kv_tokens=0", "env.budget_drafts=1.5"),
        ("suite=robust", *LIVE[:1]),
        ("zoo=folder", "zoo.folder=envs/zoo/smollm2"),
    ],
)
def test_it_is_allowed(overrides: tuple[str, ...]) -> None:
    check(composed("config", *overrides))


def test_all_problems_are_told_at_once() -> None:
    overrides = ("env.n_envs=3", "seed=x", "zoo.drafts=[cod]", "suite.controllers=[nobody]", "device=slow_loads")
    with pytest.raises(UserError, match=r"^5 problems in the configuration:\n  1\. ") as told:
        check(composed("config", *LIVE, *overrides))
    text = str(told.value)
    assert [line[:5] for line in text.splitlines()[1:]] == [f"  {number}. " for number in range(1, 6)]
    for key in ("env.n_envs", "seed", "zoo.drafts", "suite.controllers", "device.load_rounds"):
        assert text.count(f"{key}:") + text.count(f"correct {key}") == 1, key


@pytest.mark.parametrize(
    ("command", "overrides", "message"),
    [
        ("menu", (), r"runs: expected a value, got none: say `runs=\.\.\.`"),
        ("menu", ("runs=/nowhere",), r"runs: expected the folder of a live evaluation, got /nowhere"),
        ("evaluate", ("policy=/nowhere",), r"policy: expected the folder of a bundle, got /nowhere"),
        ("study", ("study.points=[1,0.5,-2]",), r"at study point -2: env\.budget_drafts: expected at least 0, got -2"),
        ("study", ("study.controllers=[bandit]",), r"study\.controllers: no 'bandit'"),
        ("study", ("study.key=env.budget",), r"study\.key: expected a key of the configuration, got 'env\.budget'"),
    ],
)
def test_other_commands_are_checked_too(command: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(composed(command, *overrides))


def test_a_simulated_profile_is_not_for_the_real_models(tmp_path: Path) -> None:
    measured = make_profile(("code",))
    for simulated in (False, True):
        dataclasses.replace(measured, simulated=simulated).save(tmp_path / "profile.json")
        assert Profile.load(tmp_path / "profile.json").simulated == simulated
        config = composed("config", *LIVE, f"device.profile={tmp_path}/profile.json")
        if simulated:
            with pytest.raises(UserError, match=r"device\.profile: expected a measured profile with env=live"):
                check(config)
        else:
            check(config)


def test_a_profile_of_another_engine_is_not_for_the_engine_that_is_named(tmp_path: Path) -> None:
    dataclasses.replace(make_profile(("code",)), engine="llamacpp").save(tmp_path / "profile.json")
    named = f"device.profile={tmp_path}/profile.json"
    with pytest.raises(UserError, match=r"expected auto or llamacpp, the engine of device\.profile, got transformers"):
        check(composed("config", named, "engine=transformers"))
    check(composed("config", named, "engine=llamacpp"))
    check(composed("config", named))


def test_every_limit_is_of_a_key_that_there_is() -> None:
    configs = [composed("config"), composed("study")]
    for key in (*(limit.key for limit in LIMITS), *FLAGS):
        assert any(key_is_in(config, key) for config in configs), key


def key_is_in(config: object, key: str) -> bool:
    for name in key.split("."):
        if name not in config:  # type: ignore[operator]
            return False
        config = config[name]  # type: ignore[index]
    return True


def test_a_dry_run_is_tiny_and_fits_itself() -> None:
    settings = agent_settings(composed("config", "dry_run=true", "env.n_envs=2", "agent=branching_dqn"))
    assert settings.total_timesteps == 256 and settings.batch_size <= settings.n_steps * 2
    assert settings.learning_starts < settings.total_timesteps


# -- what the recorded texts must have ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traces() -> dict[str, TraceSet]:
    """Those of the zoo with a single draft."""
    folder = PROJECT / "envs/zoo/smollm2_pruned/traces"
    return {split: TraceSet.load(folder / f"{split}.parquet") for split in ("train", "heldout")}


@pytest.mark.parametrize(
    ("command", "overrides", "message"),
    [
        (
            "config",
            ("workload.max_new_tokens=129",),
            r"^workload\.max_new_tokens: expected at most 128, .* got 129: ask",
        ),
        ("config", ("workload.domains=[cooking]",), r"workload\.domains: no traces of cooking in split 'train'"),
        ("config", ("+suite.judged_workload.kinds=[poem]",), r"^workload\.kinds: no traces of poem in split 'heldout'"),
        ("study", ("study=length",), r"workload\.max_new_tokens: expected at most 128, .* got 1024"),
        ("config", ("workload.domains=[cooking]", "workload.max_new_tokens=200"), r"^3 problems in the configuration"),
    ],
)
def test_what_was_not_recorded_is_refused(
    traces: dict[str, TraceSet], command: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_traces(composed(command, *overrides), traces)


def test_what_was_recorded_is_allowed(traces: dict[str, TraceSet]) -> None:
    check_traces(composed("config", "workload.max_new_tokens=128", "workload.domains=[code]"), traces)
    check_traces(composed("study", "study=length", "study.points=[64,128]"), traces)
