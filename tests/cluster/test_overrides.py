"""What becomes of overrides: names of jobs, live jobs, paths, search spaces. Without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from agents.cluster.overrides import is_live, names, quoted
from agents.cluster.space import search_space
from agents.cluster.trial_table import Trial, best_command
from agents.cluster.tune import keep_plan
from agents.paths import PROJECT
from runtime.errors import UserError
from tests.tiny_zoo import composed


def test_jobs_are_named_by_what_differs() -> None:
    assert names([["a=1", "seed=0"], ["a=1", "seed=1"]]) == ["seed=0", "seed=1"]
    assert names([["a=1", "seed=0"]]) == ["a=1 seed=0"]


@pytest.mark.parametrize(
    ("overrides", "live"),
    [
        (("live_check=false",), False),
        ((), True),
        (("dry_run=true",), False),
        (("env=live", "live_check=false"), True),
        (("suite.env=live", "live_check=false"), True),
    ],
)
def test_jobs_on_the_wall_clock_are_live(overrides: tuple[str, ...], live: bool) -> None:
    assert is_live(composed("config", *overrides), 0) is live


def test_several_live_environments_are_refused() -> None:
    with pytest.raises(UserError, match=r"job 3: env.n_envs: expected 1 with env=live .* got 2"):
        is_live(composed("config", "env=live", "env.n_envs=2"), 3)


@pytest.mark.parametrize("path", ["/a/b-c.d", "/with space/it's", "/back\\slash", "/comma,equals=1"])
def test_paths_survive_as_overrides(path: str) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(Path(path))}"])
    assert override.value() == path


def test_the_ray_launcher_composes() -> None:
    with initialize_config_dir(version_base=None, config_dir=str(PROJECT / "conf")):
        config = compose("config", ["hydra/launcher=ray"], return_hydra_config=True)
    assert config.hydra.launcher == {
        "_target_": "hydra_plugins.specpilot.RayLauncher",
        "address": None,
        "num_cpus": 1,
        "max_retries": 3,
        "overrides": ["progress=false", "live_check=false"],
    }


def test_the_default_search_is_over_keys_of_the_agent() -> None:
    pytest.importorskip("ray")
    search = OmegaConf.to_container(composed("tune").search)
    assert isinstance(search, dict)
    keys = {str(key): domain for key, domain in search.items()}
    space = search_space(keys)
    agent = composed("config").agent
    assert all(key.removeprefix("agent.") in agent for key in space)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (0.5, r"search.x: expected one of uniform, .* got 0.5"),
        ({"gauss": [0, 1]}, "expected one of uniform"),
        ({"uniform": [0]}, "expected uniform of a list of 2 numbers"),
        ({"choice": []}, "expected choice of a list of values"),
    ],
)
def test_a_domain_that_is_none_is_refused(domain: object, message: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=message):
        search_space({"x": domain})


def test_an_empty_search_is_refused() -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="search: expected keys"):
        search_space({})


def test_the_best_values_are_a_command() -> None:
    best = Trial("trials/x", ("agent.gamma=0.9", "agent.widths=[8,8]"), 1.5, 100, "done")
    train = ("suite=quick", "live_check=false", "progress=false", "zoo=smollm2")
    assert best_command(best, train) == "python train.py zoo=smollm2 agent.gamma=0.9 'agent.widths=[8,8]'"


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    keep_plan(tmp_path, {"seed": 0, "grace": 5})
    keep_plan(tmp_path, {"seed": 0, "grace": 5})
    with pytest.raises(UserError, match=r"holds a search with other values of grace, seed: choose another out=DIR"):
        keep_plan(tmp_path, {"seed": 1, "grace": 6})
