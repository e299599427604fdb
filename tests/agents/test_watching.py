"""What is shown of a run: it is there, it is right, it does not double after a resume, and looking changes nothing."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.checkpoints.folder import CheckpointFolder
from agents.checkpoints.generators import random_state
from agents.checkpoints.learner import learner_state
from agents.checkpoints.tree import pack
from agents.learning import learn
from agents.ppo import build_learner
from agents.training_envs import build_envs
from agents.watching.events import hyperparameters
from agents.watching.mix import decision_mix
from agents.watching.progress import progress_bar
from agents.watching.scalars import rollout_scalars
from agents.watching.standing import Standing
from agents.watching.validation import Judge, ValidationCallback
from runtime.control.action import ActionCodec
from runtime.control.observation import GLOBAL_INDEX, G
from runtime.control.static import plain_controller
from runtime.core import PLAIN, Decision
from tests.agents.events import read_events, steps_by_tag
from tests.agents.tiny_training import TOTAL, last, tiny_training
from tests.factories import NAMES, make_world

ROLLOUT = {
    "rollout/ep_rew_mean",
    "rollout/ep_len_mean",
    "decoding/tokens_per_s",
    "decoding/speedup_vs_plain",
    "decoding/acceptance",
    "decoding/illegal_per_decision",
    "memory/stall_s_per_1000_tokens",
    "memory/loads_per_1000_tokens",
    "memory/kv_hit_rate",
    "decisions/plain",
    "decisions/gamma_1",
    "decisions/gamma_8",
    "decisions/stop_0",
    "decisions/stop_0.5",
    "decisions/prefetch",
    "decisions/reuse",
    "decisions/retain",
    "time/decisions_per_s",
    "time/fps",
}
UPDATE = {"train/entropy", "train/explained_variance", "train/learning_rate", "train/approx_kl", "train/value_loss"}
VALIDATION = {"validation/speedup_vs_plain", "validation/best", "validation/share_plain", "time/validation_s"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted; its first checkpoints are kept."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agents.checkpoints.folder.KEPT", 1000)
        learn(tiny_training(folder))
    return folder


def test_the_event_file_holds_what_the_guide_explains(run: Path) -> None:
    events = read_events(run)
    tags = events.Tags()
    assert set(tags["scalars"]) >= ROLLOUT | UPDATE | VALIDATION
    assert set(tags["tensors"]) >= {"config/text_summary"}
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.startswith("```yaml\nseed: 0\n") or "\nseed: 0\n" in text
    assert events.PluginTagToContent("hparams")
    pictures = events.Images("validation/one_stream")
    assert [picture.step for picture in pictures] == [0, 64, 128, TOTAL]
    with Image.open(io.BytesIO(pictures[0].encoded_image_string)) as picture:
        assert picture.width >= 800 and len(np.unique(np.asarray(picture.convert("L")))) > 10
    guide = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    unexplained = {tag for tag in tags["scalars"] if not explained(tag, guide)}
    assert not unexplained


def explained(tag: str, guide: str) -> bool:
    """Whether the guide names a tag, or its kind (``gamma_*``)."""
    kind = tag.rpartition("_")[0] + "_*"
    return f"`{tag}`" in guide or f"`{kind}`" in guide


def test_every_rollout_has_its_scalars_and_every_update_at_its_end(run: Path) -> None:
    steps = {tag: [step for step, _ in pairs] for tag, pairs in steps_by_tag(run).items()}
    rollouts = list(range(32, TOTAL + 1, 32))
    assert steps["decoding/tokens_per_s"] == steps["decisions/plain"] == rollouts
    assert steps["train/entropy"] == steps["train/explained_variance"] == rollouts
    assert steps["validation/speedup_vs_plain"] == [0, 64, 128, TOTAL]


def test_scalars_say_what_happened(run: Path) -> None:
    seen = {tag: dict(pairs) for tag, pairs in steps_by_tag(run).items()}
    for step in (32, TOTAL):
        kinds = [seen[f"decisions/{kind}"][step] for kind in ("plain", "gamma_1", "gamma_2", "gamma_4", "gamma_8")]
        assert sum(kinds) == pytest.approx(1.0)
        assert 0.0 < seen["decoding/acceptance"][step] < 1.0
        assert seen["decoding/tokens_per_s"][step] > 1.0
    curve = last(run).state["standing"]["curve"]
    assert dict(curve) == pytest.approx(seen["validation/speedup_vs_plain"])


def test_nothing_is_doubled_or_lost_after_a_resume(run: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(run, part)
    for path in CheckpointFolder(part).paths():
        if int(path.stem) > 96:
            path.unlink()
    learn(tiny_training(part), last(part))
    assert len(list((part / "tensorboard").iterdir())) == 2
    assert steps_by_tag(part) == steps_by_tag(run)
    assert [picture.step for picture in read_events(part).Images("validation/one_stream")] == [0, 64, 128, TOTAL]


@pytest.mark.parametrize("normalise", ["table", "running"])
def test_validation_leaves_the_learner_as_it_was(tmp_path: Path, normalise: str) -> None:
    training = tiny_training(tmp_path, f"++agent.normalise={normalise}")
    world = training.world
    vec_env, envs = build_envs(training.make_env, (world,), 2, False, 0)
    learner = build_learner(training.settings, vec_env, training.table, 0)
    learner.learn(32)
    callback = ValidationCallback(Judge(world, 1, 0), ActionCodec(len(NAMES)), Standing(), 64)
    callback.init_callback(learner)

    def everything() -> tuple[Any, Any]:
        return pack([learner_state(learner), random_state(), envs.state_dict()])

    plain, arrays = everything()
    callback.validate()
    now_plain, now_arrays = everything()
    assert plain == now_plain
    assert arrays.keys() == now_arrays.keys()
    assert all(np.array_equal(arrays[name], now_arrays[name]) for name in arrays)


def test_plain_decoding_is_judged_to_be_itself() -> None:
    judge = Judge(make_world(), 2, 0)
    assert judge.speedup(plain_controller(len(NAMES))) == 1.0


def test_the_mix_counts_each_choice_where_it_is_one() -> None:
    codec = ActionCodec(2)
    rows = [
        ("phase_admit", 0.0, PLAIN._replace(kv=True)),
        ("phase_admit", 0.0, PLAIN),
        ("phase_decode", 1.0, Decision(draft=1, gamma=4, stop=2, prefetch=0)),
        ("phase_decode", 1.0, Decision(draft=0, gamma=8)),
        ("phase_decode", 0.0, PLAIN._replace(stop=3)),
        ("phase_decode", 0.0, Decision(draft=0, gamma=4)),
        ("phase_complete", 0.0, PLAIN._replace(kv=True)),
    ]
    observations = np.zeros((len(rows), G), dtype=np.float32)
    for row, (phase, may, _) in zip(observations, rows, strict=True):
        row[GLOBAL_INDEX[phase]], row[GLOBAL_INDEX["may_prefetch"]] = 1.0, may
    mix = decision_mix(observations, np.stack([codec.encode(decision) for _, _, decision in rows]))
    assert (mix["plain"], mix["gamma_4"], mix["gamma_8"], mix["gamma_1"]) == (0.25, 0.5, 0.25, 0.0)
    assert mix["stop_0"] == pytest.approx(2 / 3) and mix["stop_0.35"] == pytest.approx(1 / 3)
    assert (mix["prefetch"], mix["reuse"], mix["retain"]) == (0.5, 0.5, 1.0)
    assert "reuse" not in decision_mix(observations[2:], np.zeros((5, 5), dtype=np.int64))


def test_rates_are_ratios_of_sums() -> None:
    sums = {
        "committed": 500.0, "seconds": 10.0, "plain_seconds": 25.0, "accepted": 30.0, "drafted": 40.0, "illegal": 2.0,
        "stall_s": 1.5, "loads": 3.0, "wasted_loads": 1.0, "kv_hit_tokens": 10.0, "prefill_tokens": 90.0,
    }  # fmt: skip
    assert rollout_scalars(sums, 200) == {
        "decoding/tokens_per_s": 50.0,
        "decoding/speedup_vs_plain": 2.5,
        "decoding/acceptance": 0.75,
        "decoding/illegal_per_decision": 0.01,
        "memory/stall_s_per_1000_tokens": 3.0,
        "memory/loads_per_1000_tokens": 6.0,
        "memory/wasted_loads_share": pytest.approx(1 / 3),
        "memory/kv_hit_rate": 0.1,
    }
    assert "decoding/acceptance" not in rollout_scalars({**sums, "drafted": 0.0}, 200)


@pytest.mark.parametrize("batched", [False, True])
def test_sums_are_over_episodes_and_environments_since_last_asked(batched: bool) -> None:
    world = make_world(max_steps=7)
    vec_env, envs = build_envs(world.env, (world,), 2, batched, 3)
    vec_env.reset()
    assert set(envs.since_last_asked().values()) <= {0.0}
    for count in (20, 10):
        for _ in range(count):
            vec_env.step(np.zeros((2, 5), dtype=np.int64))
        grown = envs.since_last_asked()
        assert grown["plain_seconds"] == pytest.approx(grown["seconds"], rel=0.05), "plain decoding is its own measure"
        assert 2 * count * 0.75 <= grown["committed"] <= 2 * count, "a token each, but at completions"
        assert grown["drafted"] == 0.0
    assert envs.since_last_asked()["committed"] == 0.0
    vec_env.close()


def test_hyperparameters_are_flat_and_plain() -> None:
    config = {"seed": 3, "agent": {"widths": [8], "target_kl": None, "gamma": 0.9}, "zoo": {"folder": "x"}}
    assert hyperparameters(config) == {"seed": 3, "agent.widths": "[8]", "agent.target_kl": "None", "agent.gamma": 0.9}


def test_the_bar_begins_where_the_run_does(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(200, 50, shown=True) as bar:
        bar.update(50)
    shown = capsys.readouterr().err
    assert "training:  50%" in shown and "100/200" in shown and "dec/s" in shown
    with progress_bar(200, 50, shown=False):
        pass
    assert not capsys.readouterr().err
