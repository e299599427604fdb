"""Setting a run up: every configuration composes, and every file that does not belong is refused by name."""

from __future__ import annotations

import dataclasses
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agents import setup
from agents.evaluate import evaluate_bundle
from agents.setup import PROJECT, agent_settings, load_profile, memory_budget, prepare
from envs.traces import DraftRef, TraceSet
from runtime.control.topic import TopicPredictor
from runtime.errors import UserError
from runtime.profile import CostModel, Profile
from runtime.zoo import Zoo
from tests.tiny_zoo import TinyZoo, composed, copied, edit_json


def test_a_zoo_is_set_up(tiny_zoo: TinyZoo) -> None:
    setting = prepare(tiny_zoo.config())
    assert [spec.name for spec in setting.specs] == ["one", "two", "lookup"]
    assert [spec.loadable for spec in setting.specs] == [True, True, False]
    assert setting.topic.drafts == setting.zoo.draft_names
    workspace = setting.memory.workspace_bytes
    largest = max(spec.bytes for spec in setting.specs if spec.loadable)
    always = workspace + sum(spec.bytes for spec in setting.specs if not spec.loadable)
    assert setting.memory.budget_bytes == 2 * largest + 1500 * setting.zoo.target.kv_bytes_per_token + always


def test_the_budget_counts_drafts_and_kv(tiny_zoo: TinyZoo) -> None:
    specs = tiny_zoo.zoo.specs(64)
    none = memory_budget(tiny_zoo.config("env.budget_drafts=0", "env.budget_kv_tokens=0"), tiny_zoo.zoo)
    index_bytes = sum(spec.bytes for spec in specs if not spec.loadable)
    assert none.budget_bytes == none.workspace_bytes + index_bytes


def test_the_budget_is_in_tokens_of_the_engine_that_was_measured(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    half = tiny_zoo.zoo.target.kv_bytes_per_token // 2
    dataclasses.replace(Profile.load(tiny_zoo.profile), kv_bytes_per_token=half).save(tmp_path / "half.json")
    whole, small = (prepare(tiny_zoo.config(*more)) for more in ((), (f"device.profile={tmp_path / 'half.json'}",)))
    assert small.memory.kv_bytes_per_token == half
    assert whole.memory.budget_bytes - small.memory.budget_bytes == 1500 * half


def test_what_is_measured_is_the_engine_of_the_configuration(
    tiny_zoo: TinyZoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measured(*_: object, engine: str, **__: object) -> Profile:
        asked.append(engine)
        return Profile.load(tiny_zoo.profile)

    monkeypatch.setattr(setup, "device_profile", measured)
    load_profile(tiny_zoo.config("device.profile=null", "engine=llamacpp"), tiny_zoo.zoo)
    assert asked == ["llamacpp"]


def test_loads_can_be_overridden(tiny_zoo: TinyZoo) -> None:
    measured = Profile.load(tiny_zoo.profile)
    profile = load_profile(tiny_zoo.config("device.load_rounds=7"), tiny_zoo.zoo)
    plain_s = measured.decode.at(measured.reference_context)
    assert profile.simulated
    assert [profile.drafts[name].load_s for name in ("one", "two", "lookup")] == [7 * plain_s, 7 * plain_s, 0.0]


# -- files that do not belong ------------------------------------------------------------------------------------


def overwrite(name: str, data: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return damage


def truncate(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return damage


def retrace(change: Callable[[TraceSet], TraceSet]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "traces/train.parquet"
        change(TraceSet.load(path)).save(path)

    return damage


def renamed(traces: TraceSet) -> TraceSet:
    return dataclasses.replace(traces, drafts=(DraftRef("three", "x" * 64), *traces.drafts[1:]))


def rehashed(traces: TraceSet) -> TraceSet:
    return dataclasses.replace(traces, drafts=(DraftRef("one", "x" * 64), *traces.drafts[1:]))


def other_topic(folder: Path) -> None:
    topic = TopicPredictor.load(folder / "topic.safetensors")
    dataclasses.replace(topic, drafts=("two", "three", "lookup")).save(folder / "topic.safetensors")


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no zoo": (lambda folder: (folder / "zoo.json").unlink(), r"no zoo manifest at .*zoo.json: check the path"),
    "half a zoo manifest": (truncate("zoo.json"), r"zoo.json is not a readable zoo manifest"),
    "zoo without drafts": (
        lambda folder: edit_json(folder / "zoo.json", lambda data: data.pop("drafts")),
        r"zoo.json: not a whole zoo manifest \('drafts'\)",
    ),
    "draft truncated": (truncate("drafts/one.draft.safetensors"), r"draft one at .* the file is damaged"),
    "no traces": (lambda folder: (folder / "traces/heldout.parquet").unlink(), r"no trace file at .*heldout.parquet"),
    "traces truncated": (truncate("traces/train.parquet"), r"train.parquet: not a readable trace file"),
    "traces are text": (overwrite("traces/train.parquet", b"hello"), r"train.parquet: not a readable trace file"),
    "traces of another draft": (retrace(renamed), r"the traces of draft 'one' are of another draft file"),
    "traces of another file": (retrace(rehashed), r"the traces of draft 'one' are of another draft file"),
    "traces of another target": (
        retrace(lambda traces: dataclasses.replace(traces, target="y" * 64)),
        r"expected traces of target .*, got traces of yyyy",
    ),
    "topic truncated": (truncate("topic.safetensors"), r"topic.safetensors: not a readable topic predictor"),
    "topic empty": (overwrite("topic.safetensors", b""), r"topic.safetensors: not a readable topic predictor"),
    "topic of other drafts": (other_topic, r"topic.safetensors: .* drafts two, three, lookup"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_does_not_belong_is_refused(tiny_zoo: TinyZoo, tmp_path: Path, damage: str) -> None:
    do, message = DAMAGES[damage]
    folder = copied(tiny_zoo.zoo.folder, tmp_path / "zoo")
    do(folder)
    with pytest.raises(UserError, match=message):
        prepare(tiny_zoo.config(zoo=folder))


def test_a_profile_without_a_draft_is_refused(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    profile = Profile.load(tiny_zoo.profile)
    drafts = {name: cost for name, cost in profile.drafts.items() if name != "two"}
    dataclasses.replace(profile, drafts=drafts).save(tmp_path / "profile.json")
    with pytest.raises(UserError, match=r"has no costs for two .* run `specpilot profile` for this zoo"):
        prepare(tiny_zoo.config(f"device.profile={tmp_path / 'profile.json'}"))


def test_a_profile_with_a_broken_curve_is_refused(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(tiny_zoo.profile.read_bytes())
    edit_json(path, lambda data: data.update(decode={"x": [2, 1], "seconds": [1, 1]}))
    with pytest.raises(UserError, match=r"not a whole profile \(a curve needs increasing x"):
        prepare(tiny_zoo.config(f"device.profile={path}"))


def test_a_bundle_of_another_zoo_is_not_judged(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    folder = copied(tiny_zoo.zoo.folder, tmp_path / "zoo")
    dataclasses.replace(Zoo.load(folder), name="other").save()
    config = tiny_zoo.config(f"policy={tiny_zoo.bundle}", f"out={tmp_path / 'out'}", name="evaluate", zoo=folder)
    with pytest.raises(UserError, match=r"a bundle of zoo 'tiny' with other files than the zoo 'other'"):
        evaluate_bundle(config)
    assert not (tmp_path / "out").exists()


# -- configuration -----------------------------------------------------------------------------------------------


def test_a_device_on_the_command_line_wins_over_the_suites() -> None:
    assert composed("evaluate", "suite=memspec").device.built.load == 2.7
    assert composed("evaluate", "suite=memspec", "device=this_machine").device.built is None


@pytest.mark.parametrize("device", ["jetson-orin-nano", "laptop-gpu"])
def test_a_built_device_costs_what_its_ratios_say(tiny_zoo: TinyZoo, device: str) -> None:
    config = tiny_zoo.config("device.profile=null", f"+device@other={device}")
    profile = load_profile(config, tiny_zoo.zoo, config.other)
    ratios, costs = config.other.built, CostModel(profile, tiny_zoo.zoo.draft_names)
    plain_s = costs.plain_s(200)
    assert profile.simulated and profile.device == f"{ratios.name} (simulated)"
    assert plain_s == pytest.approx(ratios.plain_ms / 1e3)
    assert costs.forward_s(5, 200) / plain_s == pytest.approx(ratios.verify[5])
    assert costs.prefill_s(512, 0) / plain_s == pytest.approx(ratios.prefill[512])
    assert costs.load_s(0) / plain_s == pytest.approx(ratios.load)
    assert costs.draft_s(0, 1) / plain_s == pytest.approx(ratios.draft_step)
    assert costs.load_s(2) == costs.draft_s(2, 1) == 0.0  # the look-up


def test_a_suite_may_judge_on_another_device_and_workload(tiny_zoo: TinyZoo) -> None:
    overrides = (
        "+device@suite.judged_device=laptop-gpu",
        "+suite.judged_workload.domains=[two]",
        "workload.domains=[one]",
    )
    setting = prepare(tiny_zoo.config(*overrides))
    assert {item.trace.domain for stream in setting.train.streams(0, 3) for item in stream} == {"one"}
    assert {item.trace.domain for stream in setting.heldout.streams(0, 3) for item in stream} == {"two"}
    assert setting.heldout.costs.profile.device == "laptop GPU (simulated)"
    assert setting.train.costs.profile.device == "made up"


def test_a_run_may_ask_for_some_drafts(tiny_zoo: TinyZoo) -> None:
    setting = prepare(tiny_zoo.config("zoo.drafts=[two]"))
    whole = prepare(tiny_zoo.config())
    assert setting.zoo.draft_names == setting.topic.drafts == ("two",)
    assert setting.topic.bias.tolist() == whole.topic.bias[1:2].tolist()
    with pytest.raises(UserError, match="expected some of the drafts one, two, lookup, got three"):
        prepare(tiny_zoo.config("zoo.drafts=[three]"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent.algorithm=foo", r"agent.algorithm: expected .*maskable_ppo, .* got 'foo'"),
        ("agent.n_steps=0", r"agent.n_steps: expected at least 1, got 0"),
        ("+agent.nonsense=1", r"agent configuration: .*'nonsense'"),
    ],
)
def test_a_wrong_hyperparameter_is_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        agent_settings(composed("config", override))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.requests=0", r"workload.requests: expected at least 1, got 0"),
        ("workload.min_topic_requests=9", r"expected 1 <= min_topic_requests <= max_topic_requests"),
        ("workload.follow_up=2", r"workload.follow_up: expected at least 0 and at most 1, got 2"),
    ],
)
def test_a_wrong_workload_is_refused(tiny_zoo: TinyZoo, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(tiny_zoo.config(override))


# -- the command -------------------------------------------------------------------------------------------------


def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> object:
    """Run the command in this process; what it exits with."""
    quiet = ("hydra/job_logging=none", "hydra/hydra_logging=none", f"hydra.run.dir={tmp_path}/outputs/today/now")
    monkeypatch.setattr(sys, "argv", ["train.py", *quiet, *arguments])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    try:
        runpy.run_path(str(PROJECT / "train.py"), run_name="__main__")
    except SystemExit as end:
        return end.code
    return 0


def test_all_that_does_not_fit_ends_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = train(monkeypatch, tmp_path, "agent.algorithm=foo", "zoo.folder=/nowhere")
    assert isinstance(told, str) and told.startswith("train.py: 2 problems in the configuration:")
    assert "agent.algorithm: expected" in told and "/nowhere/zoo.json" in told
    assert not (tmp_path / "outputs/latest").exists()


def test_a_value_that_is_missing_ends_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = str(train(monkeypatch, tmp_path, "zoo=folder"))
    assert told.startswith("train.py: zoo.folder: expected a value, got none: say `zoo.folder=...`")


def test_help_reads_like_a_manual_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine/zoo").mkdir(parents=True)
    (tmp_path / "mine/zoo/my_own.yaml").write_text("defaults: [smollm2]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert train(monkeypatch, tmp_path, "--config-dir", str(tmp_path / "mine"), "--help") == 0
    shown = capsys.readouterr().out
    heads = [line for line in shown.splitlines() if line and line[0].isupper() and line.split(" (")[0].isupper()]
    assert [head.split(" (")[0] for head in heads] == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "EXPERIMENTS", "GROUPS", "KEYS", "EXAMPLES", "FILES", "EXIT STATUS", "MORE",
    ]  # fmt: skip
    assert "python train.py dry_run=true" in shown and "maskable_ppo*" in shown and "my_own" in shown
    assert "total_timesteps: 100000 # decisions" in shown


@pytest.mark.parametrize("override", ["nonsense=1", "agent.nonsense=1", "agent=nonsense"])
def test_an_unknown_override_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    assert train(monkeypatch, tmp_path, override) == 1
    shown = capsys.readouterr().err
    assert "nonsense" in shown and "Traceback" not in shown  # the message is Hydra's own


@pytest.mark.slow
def test_an_unknown_override_ends_the_process(tmp_path: Path) -> None:
    command = [sys.executable, str(PROJECT / "train.py"), "nonsense=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "Could not override 'nonsense'" in done.stderr and "Traceback" not in done.stderr
