"""The benchmark of a decision: every round is counted once, and policies that are the same decide alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import decision
from tests.tiny_zoo import TinyZoo, copied


def test_rounds_are_shared_out_and_every_part_is_timed(
    tiny_zoo: TinyZoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decision, "PROMPTS", ("w5 w17 w3 w44", "w9 w17 w3"))
    monkeypatch.setattr(decision, "LOOP_ROUNDS", 20)
    twin, out = copied(tiny_zoo.bundle, tmp_path / "twin" / "bundle"), tmp_path / "decision.json"
    call = ["--bundle", str(tiny_zoo.bundle), "--bundle", str(twin), "--tokens", "24", "--threads", "1"]
    assert decision.main([*call, "--onnxruntime", "--floor", "--out", str(out), "--no-progress"]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["alike"] == 1.0
    assert len(report["rows"]) == 5
    assert "one node" in report["rows"]
    for row in report["rows"].values():
        assert row["rounds"] > 0 and 0.0 < row["policy_share"] < row["together_share"]
        for part in ("loop", "policy", "observe", "guard", "together"):
            assert 0.0 < row[part]["p50"] <= row[part]["p90"] <= row[part]["p99"]
    assert "they decide alike in 100.00%" in capsys.readouterr().out


def test_what_is_no_bundle_is_refused(tiny_zoo: TinyZoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    assert decision.main(["--bundle", str(tiny_zoo.bundle), "--bundle", str(gone)]) == 2
    assert f"benchmarks.decision: no bundle at {gone}" in capsys.readouterr().err
