"""``resume=PATH`` takes the kept configuration and refuses what would make it another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from agents.checkpoints.config import how_to_resume, in_run_folder, resumed
from agents.checkpoints.file import Checkpoint
from agents.checkpoints.folder import CheckpointFolder
from runtime.errors import UserError
from tests.tiny_zoo import composed

BEGUN = ("device=laptop-gpu", "agent.learning_rate=0.5", "agent=ppo", "seed=7", "workload.requests=3")
"""How the run was begun."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with one checkpoint."""
    config = cast(dict[str, Any], OmegaConf.to_container(composed("config", *BEGUN), resolve=True))
    folder = tmp_path / "it's a run"
    CheckpointFolder(folder).write(Checkpoint(40, 100, config, {}, "code", {}, {}))
    return folder


def ask(run: Path, *overrides: str) -> Any:
    """The configuration of ``train.py resume=RUN`` with these overrides."""
    composed_now = composed("config", *overrides)
    composed_now.resume = str(run)
    config, found = resumed(composed_now, ["resume=x", *overrides])
    assert found is not None and found.run == run and found.checkpoint.decisions == 40
    return config


def test_without_resume_nothing_changes() -> None:
    config = composed("config")
    assert resumed(config, []) == (config, None)


def test_the_kept_configuration_holds_without_being_repeated(run: Path) -> None:
    config = ask(run)
    assert (config.agent.learning_rate, config.agent.algorithm, config.seed) == (0.5, "ppo", 7)
    assert config.workload.requests == 3 and config.resume == str(run)


def test_free_values_may_change(run: Path) -> None:
    config = ask(run, "agent.total_timesteps=12345", "suite=quick", "progress=false", "agent.learning_rate=0.5")
    assert config.agent.total_timesteps == 12345
    assert (config.suite.name, config.progress, config.seed) == ("quick", False, 7)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("seed=8", r"seed was 7, now 8\."),
        ("agent.widths=[4]", r"agent.widths was \[128, 128\], now \[4\]"),
        ("agent=maskable_ppo", "agent.algorithm was 'ppo', now 'maskable_ppo'; agent.learning_rate was 0.5, now 0"),
        ("env=live", "env.name was 'replay', now 'live'"),
        ("+device.fleet={count:1}", r"device.fleet was None, now 'something else'"),
    ],
)
def test_what_matters_is_refused_with_both_values(run: Path, override: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as refusal:
        ask(run, override)
    assert "Free to change: progress" in str(refusal.value)


def test_a_run_that_goes_on_stays_in_its_folder(run: Path) -> None:
    assert in_run_folder(["seed=1", "resume=null"]) == ["seed=1", "resume=null"]
    given = ["resume='x'", f"resume={run}"]
    arguments = in_run_folder(given)
    assert arguments[:2] == given
    folder, records = OverridesParser.create().parse_overrides(arguments[2:])
    assert (folder.get_key_element(), folder.value()) == ("hydra.run.dir", str(run))
    assert records.get_key_element() == "hydra.output_subdir" and records.value() is None
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        in_run_folder([f"resume={run / 'elsewhere'}"])


def test_after_an_interruption_it_is_said_how_to_go_on(run: Path, tmp_path: Path) -> None:
    assert how_to_resume(run) == f"go on at decision 40 with: python train.py resume={run}"
    assert how_to_resume(tmp_path / "new") == "no checkpoint was written yet, start again"
