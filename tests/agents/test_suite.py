"""A whole suite on a tiny zoo: every controller, the bounds, the pictures, the files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agents.evaluate import evaluate_bundle
from agents.heuristic import HeuristicController
from agents.setup import prepare, round_table
from runtime.bundle import read_bundle
from runtime.core import Phase
from runtime.errors import UserError
from tests.tiny_zoo import TinyZoo

SHORT = ("suite=quick", "workload.requests=3", "suite.streams=2", "suite.tuning_streams=1")


def test_a_suite_leaves_a_whole_report(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    evaluate_bundle(
        tiny_zoo.config(
            *SHORT, "suite.controllers=null", f"policy={tiny_zoo.bundle}", f"out={tmp_path}", name="evaluate"
        )
    )
    report = json.loads((tmp_path / "report.json").read_text())
    names = {row["controller"] for row in report["rows"]}
    assert {"policy", "heuristic", "stacked", "stacked_plus", "hedge", "bandit_exp3_resident"} <= names
    assert {"oracle_perfect", "oracle_clairvoyant", "oracle_budget"} <= names
    assert {"fixed:4:bypass", "memspec_no_memory", "memspec_no_prediction", "hf_dynamic", "adaedl"} <= names
    assert all(row["identical"] for row in report["rows"])
    page = (tmp_path / "report.html").read_text()
    for picture in ("one-stream-of-requests-drawn", "how-far-to-guess", "where-the-time-above-the-bound-went"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 0
    assert page.count("<svg") >= 4
    runs = pq.read_table(tmp_path / "runs.parquet")
    assert set(runs["controller"].to_pylist()) == {name for name in names if not name.startswith("oracle")}
    tuned = {each["name"] for each in json.loads((tmp_path / "tuning.json").read_text())["tuned"]}
    assert {"memspec_stop", "stacked", "heuristic"} <= tuned


def test_only_what_is_asked_for_is_judged(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    asked = "suite.controllers=[memspec,'static:']"
    evaluate_bundle(tiny_zoo.config(*SHORT, asked, f"out={tmp_path}", name="evaluate"))
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    names = [row["controller"] for row in rows if not row["controller"].startswith("oracle")]
    assert sum(name.startswith("static:") for name in names) == 3
    assert {name for name in names if not name.startswith("static:")} == {"plain", "memspec"}


def test_an_unknown_controller_is_refused(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    config = tiny_zoo.config(*SHORT, "suite.controllers=[nobody]", f"out={tmp_path / 'out'}", name="evaluate")
    with pytest.raises(UserError, match=r"suite.controllers: no 'nobody'; leave it out"):
        evaluate_bundle(config)
    assert not (tmp_path / "out" / "report.json").exists()


def test_the_heuristic_decides_as_the_untrained_policy(tiny_zoo: TinyZoo) -> None:
    setting = prepare(tiny_zoo.config())
    heuristic = HeuristicController(round_table(setting), token_price=1.0)
    policy = read_bundle(tiny_zoo.bundle).controller()
    session = setting.heldout.session()
    session.start(item.request for item in setting.heldout.streams(0, 1)[0])
    finished, phases = False, set()
    while not finished:
        observation = session.observe()
        decision = policy.decide(observation)
        assert heuristic.decide(observation) == decision
        phases.add(observation.phase)
        finished = session.advance(decision).stream_finished
    assert phases == set(Phase)
