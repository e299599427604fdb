"""2N steps are N, a new process, and N: bit for bit. One seed gives one policy. Nothing else is gone on with."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from agents.checkpoints.file import read_checkpoint
from agents.checkpoints.folder import CheckpointFolder
from agents.checkpoints.run import differences
from agents.learning import Learned, learn
from agents.training_envs import SteppedEnvs
from agents.watching.standing import Standing
from envs.base import SpecEnv
from runtime.errors import UserError
from tests.agents.tiny_training import TOTAL, last, same, tiny_training
from tests.factories import make_world

HALF = TOTAL // 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Learned]:
    """A run that was not interrupted; every checkpoint is kept."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agents.checkpoints.folder.KEPT", 1000)
        learned = learn(tiny_training(folder))
    return folder, learned


def cut(folder: Path, to: Path, decisions: int) -> Path:
    """A copy of a run as it was after so many decisions."""
    shutil.copytree(folder, to)
    for path in CheckpointFolder(to).paths():
        if int(path.stem) > decisions:
            path.unlink()
    assert last(to).decisions == decisions
    return to


def policy(learned: Learned) -> list[npt.NDArray[np.float32]]:
    return [value.numpy() for value in learned.learner.policy.state_dict().values()]


def test_training_moves_the_weights_and_writes_a_curve(whole: tuple[Path, Learned]) -> None:
    folder, learned = whole
    paths = CheckpointFolder(folder).paths()
    assert [int(path.stem) for path in paths] == list(range(0, TOTAL + 1, 32))
    assert len(same(read_checkpoint(paths[0]), read_checkpoint(paths[-1]))) > 10
    assert [decisions for decisions, _ in learned.curve] == [0, 64, 128, TOTAL]
    assert len({speedup for _, speedup in learned.curve}) > 1
    assert max(speedup for _, speedup in learned.curve) == last(folder).state["standing"]["best"]


@pytest.mark.parametrize("decisions", [0, HALF, TOTAL])
def test_a_run_in_two_parts_is_the_run_in_one(whole: tuple[Path, Learned], tmp_path: Path, decisions: int) -> None:
    folder, learned = whole
    part = cut(folder, tmp_path / "part", decisions)
    with torch.random.fork_rng():
        torch.manual_seed(99)  # another process stands elsewhere
        np.random.seed(99)  # noqa: NPY002 - what stable-baselines3 draws from
        resumed = learn(tiny_training(part), last(part))
    assert last(part).decisions == TOTAL
    assert same(last(folder), last(part)) == []
    assert resumed.curve == learned.curve
    assert all(np.array_equal(one, other) for one, other in zip(policy(learned), policy(resumed), strict=True))


def test_one_seed_is_one_policy_and_another_is_another(whole: tuple[Path, Learned], tmp_path: Path) -> None:
    folder, _ = whole
    learn(tiny_training(tmp_path / "again"))
    assert same(last(folder), last(tmp_path / "again")) == []
    learn(tiny_training(tmp_path / "other", "seed=1", "agent.total_timesteps=32", "agent.eval_every=1000"))
    first = read_checkpoint(CheckpointFolder(tmp_path / "other").paths()[0])
    assert first.decisions == 0
    before = read_checkpoint(CheckpointFolder(folder).paths()[0])
    assert any("policy_net" in name for name in same(before, first)), "the model has a seed"
    assert before.state["envs"]["envs"][0]["rng"] != first.state["envs"]["envs"][0]["rng"], "so have the environments"
    assert last(folder).state["standing"]["curve"][0] != first.state["standing"]["curve"][0], "and validation"


def test_more_decisions_go_on_from_the_end(whole: tuple[Path, Learned], tmp_path: Path) -> None:
    part = cut(whole[0], tmp_path / "part", TOTAL)
    learned = learn(tiny_training(part, f"agent.total_timesteps={TOTAL + 64}"), last(part))
    assert (last(part).decisions, last(part).total) == (TOTAL + 64, TOTAL + 64)
    assert learned.curve[: len(whole[1].curve)] == whole[1].curve


@pytest.mark.parametrize(
    ("algorithm", "batched"),
    [("ppo", False), ("recurrent_ppo", False), ("branching_dqn", False), ("maskable_ppo", True)],
)
def test_every_algorithm_and_kind_of_environment_goes_on_the_same(
    tmp_path: Path, algorithm: str, batched: bool
) -> None:
    running = ("++agent.normalise=running",) if batched else ()
    overrides = (f"agent.algorithm={algorithm}", "agent.eval_every=1000", "++agent.learning_starts=32", *running)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agents.checkpoints.folder.KEPT", 1000)
        learn(tiny_training(tmp_path / "whole", *overrides, batched=batched))
    decisions = int(CheckpointFolder(tmp_path / "whole").paths()[3].stem)
    part = cut(tmp_path / "whole", tmp_path / "part", decisions)
    learn(tiny_training(part, *overrides, batched=batched), last(part))
    assert last(part).decisions >= TOTAL > decisions > 0
    assert same(last(tmp_path / "whole"), last(part)) == []


def test_a_run_over_other_files_is_refused(whole: tuple[Path, Learned], tmp_path: Path) -> None:
    training = tiny_training(tmp_path, inputs={"traces": "others"})
    with pytest.raises(UserError, match="traces was made up, now others"):
        learn(training, last(whole[0]))


def test_a_run_whose_environments_take_another_course_is_refused(whole: tuple[Path, Learned], tmp_path: Path) -> None:
    world = make_world(max_steps=40, budget_bytes=1500)
    with pytest.raises(UserError, match=r"does not fit this code.*Resume with the code that wrote it"):
        learn(tiny_training(tmp_path, make_env=world.env), last(whole[0]))


def test_weights_of_another_size_are_refused(whole: tuple[Path, Learned], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)does not fit this code.*size mismatch"):
        learn(tiny_training(tmp_path, "agent.widths=[9]"), last(whole[0]))


def test_differences_of_code_and_libraries_are_told(whole: tuple[Path, Learned]) -> None:
    checkpoint = last(whole[0])
    assert differences(checkpoint) == []
    older = dataclasses.replace(checkpoint, code="abc", libraries={**checkpoint.libraries, "numpy": "1.0"})
    assert [line.partition(",")[0] for line in differences(older)] == ["code was abc", "numpy was 1.0"]


class Failing(SpecEnv):
    """Breaks after so many decisions, as if killed."""

    left = 0

    def step(self, action: npt.NDArray[np.int64]) -> Any:
        Failing.left -= 1
        if Failing.left < 0:
            raise ConnectionAbortedError("gone")
        return super().step(action)


@pytest.mark.parametrize("decisions", [33, 64, 95])
def test_an_interruption_loses_at_most_one_interval(tmp_path: Path, decisions: int) -> None:
    world = make_world(max_steps=100)
    Failing.left = decisions
    training = tiny_training(
        tmp_path, "agent.eval_every=1000", make_env=lambda: Failing(world.episode, len(world.drafts), 100)
    )
    with pytest.raises(ConnectionAbortedError):
        learn(training)
    assert decisions - 32 <= last(tmp_path).decisions <= decisions


def test_a_live_environment_begins_a_new_stream(whole: tuple[Path, Learned], tmp_path: Path) -> None:
    part = cut(whole[0], tmp_path / "part", HALF)
    learned = learn(tiny_training(part, live=True), last(part))
    assert last(part).decisions == TOTAL
    assert same(last(whole[0]), last(part)) != []
    assert learned.curve[:2] == whole[1].curve[:2]


def test_a_new_stream_is_not_the_first_one_again() -> None:
    world = make_world(max_steps=100)

    def stands(steps: int, redrawn_from: Any = None) -> Any:
        vec_env = SteppedEnvs(world.env, 2)
        vec_env.seed(5)
        vec_env.reset() if redrawn_from is None else vec_env.redraw(redrawn_from)
        for _ in range(steps):
            vec_env.step(np.zeros((2, 5), dtype=np.int64))
        return vec_env.state_dict()

    begun, later = stands(0), stands(150)
    for index in range(2):
        rngs = [state["envs"][index]["rng"]["state"]["state"] for state in (begun, later, stands(0, later))]
        assert len(set(rngs)) == 3


def test_training_stops_when_validation_gains_no_more(tmp_path: Path) -> None:
    early = ("++agent.patience=2", "++agent.min_gain=10", "agent.eval_every=32")
    learned = learn(tiny_training(tmp_path, *early))
    assert [decisions for decisions, _ in learned.curve] == [0, 32, 64]
    assert last(tmp_path).decisions == 64
    again = learn(tiny_training(tmp_path, *early), last(tmp_path))
    assert again.curve == learned.curve and last(tmp_path).decisions == 64
    more = learn(tiny_training(tmp_path, "++agent.patience=4", *early[1:]), last(tmp_path))
    assert [decisions for decisions, _ in more.curve] == [0, 32, 64, 96, 128]


def test_the_last_weights_are_kept_where_that_is_asked(tmp_path: Path) -> None:
    learn(tiny_training(tmp_path, "agent.eval_every=32"))
    checkpoint, name = last(tmp_path), "mlp_extractor.policy_net.0.weight"
    best = checkpoint.state["standing"]["best_weights"]["policy"]
    best[name] = best[name] + 1.0  # the best need not have been better once; here they are others
    kept = {keep: learn(tiny_training(tmp_path, f"agent.keep={keep}"), checkpoint) for keep in ("best", "last")}
    weights = {keep: learned.learner.policy.state_dict()[name].numpy() for keep, learned in kept.items()}
    assert np.array_equal(weights["best"], best[name])
    assert np.array_equal(weights["last"], checkpoint.state["learner"]["parameters"]["policy"][name])


def test_gains_are_counted_from_the_last_gain() -> None:
    standing = Standing()
    better = [standing.note(step, speedup, 0.1) for step, speedup in enumerate((1.0, 1.06, 1.12, 1.05, 1.2))]
    assert better == [True, True, True, False, True]
    assert (standing.reference, standing.stale, standing.best) == (1.12, 2, 1.2)
    assert standing.exhausted(2) and not standing.exhausted(3) and not standing.exhausted(0)
    assert Standing.of_state(standing.state_dict()) == standing
