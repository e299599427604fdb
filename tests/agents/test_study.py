from __future__ import annotations

from pathlib import Path

import pytest

from agents.report.study import Study, study_pictures
from agents.study import run_study
from runtime.errors import UserError
from tests.tiny_zoo import TinyZoo, edit_json

OVERRIDES = ("suite=quick", "suite.tuning_streams=1", "study.streams=2", "workload.requests=3")


def test_a_study_varies_one_key(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    config = tiny_zoo.config(
        "study=load", "study.points=[1,50]", "study.controllers=[memspec,memspec_no_memory]", *OVERRIDES, name="study"
    )
    study = run_study(config)
    assert study.values == (1.0, 50.0)
    assert study.simulated
    assert set(study.speedups) == {"memspec", "memspec_no_memory"}
    for points in study.speedups.values():
        assert all(low <= value <= high for value, low, high in points)
    quick, slow = study.speedups["memspec_no_memory"]
    assert slow[0] < quick[0]  # it waits for every load
    path = study.save(tmp_path)
    assert path.with_suffix(".png").stat().st_size > 0
    assert Study.load(path) == study
    (picture,) = study_pictures(tmp_path)
    assert picture.title == study.title and "simulated" in picture.caption


def test_the_policy_takes_part(tiny_zoo: TinyZoo) -> None:
    overrides = ("study.points=[1]", "study.controllers=[policy]", f"policy={tiny_zoo.bundle}", *OVERRIDES)
    assert set(run_study(tiny_zoo.config("study=slots", *overrides, name="study")).speedups) == {"policy"}


def test_a_damaged_study_is_refused(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    study = Study("s", "t", "l", False, "quick", "made up", True, (1.0,), {"memspec": ((1.0, 0.9, 1.1),)})
    with pytest.raises(UserError, match="expected studies"):
        study_pictures(tmp_path)
    path = study.save(tmp_path)
    edit_json(path, lambda data: data.pop("speedups"))
    with pytest.raises(UserError, match=r"study-s.json: not a whole study"):
        Study.load(path)
    edit_json(path, lambda data: data.update(schema=99))
    with pytest.raises(UserError, match="expected a study of schema 1, got 99"):
        Study.load(path)
