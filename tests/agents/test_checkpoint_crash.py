"""A training process killed with SIGKILL at random moments ends with the weights of one that was left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.setup import PROJECT
from tests.agents.events import steps_by_tag
from tests.agents.tiny_training import TOTAL, last, same


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_runs_end_like_one_that_was_left_alone(tmp_path: Path, kills: int) -> None:
    command = [sys.executable, "-m", "tests.agents.crashing", str(tmp_path), str(kills), "0"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    runs: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert sum(runs.values()) == kills
    whole = last(tmp_path / "whole")
    assert whole.decisions == TOTAL
    for name in runs:
        assert same(whole, last(tmp_path / name)) == []
        assert not list((tmp_path / name / "checkpoints").glob(".*")), "half-written files are cleaned away"
        assert steps_by_tag(tmp_path / name) == steps_by_tag(tmp_path / "whole")
