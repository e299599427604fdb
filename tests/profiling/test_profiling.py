"""Profiling: every cost that replay asks for is there, positive, and survives the file."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from runtime import profiling
from runtime.engine.draft_file import SUFFIX, save_draft
from runtime.errors import UserError
from runtime.files import sha256_file
from runtime.live import LiveModels
from runtime.memory.base import Loaded
from runtime.profile import CostModel, Profile
from runtime.profiling import Bench, measure_profile
from runtime.timing import curve, median_of, timed
from runtime.zoo import Zoo, ZooDraft, ZooTarget
from tests import tiny


@pytest.fixture
def models(tmp_path: Path) -> LiveModels:
    parts = tiny.draft_parts("sometimes")
    path = tmp_path / f"sometimes{SUFFIX}"
    save_draft(path, parts.header, parts.vocab, parts.tensors)
    target = tiny.target()
    zoo = Zoo(
        "tiny",
        tmp_path,
        ZooTarget(("none",), parts.header.target_sha256, target.kv_bytes_per_token, 160, tiny.VOCAB, ()),
        (ZooDraft("sometimes", path.name, sha256_file(path), 1000, 128), ZooDraft("lookup", "", "", 0, 0)),
    )
    return LiveModels(zoo, tmp_path, target, None)


def test_a_profile_has_every_cost(models: LiveModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "ROUNDS", 3)
    profile = measure_profile(models, threads=2, progress=False)
    assert models.target.length == 0
    assert (profile.target, profile.dtype, profile.threads) == (models.zoo.target.fingerprint, "float32", 2)
    assert not profile.simulated and profile.decode_slowdown >= 1.0 and profile.load_slowdown >= 1.0
    assert profile.forward.x == (1.0, 2.0, 3.0, 5.0, 9.0)
    assert profile.decode.at(profile.reference_context) == profile.forward.at(1)
    for cost in (profile.forward, profile.decode, profile.prefill, profile.kv_store, profile.kv_restore):
        assert len(cost.x) == len(cost.spread) >= 2 and min(cost.seconds) > 0
    draft, lookup = profile.drafts["sometimes"], profile.drafts["lookup"]
    assert draft.load_s > 0 and draft.bytes > 0 and draft.forward.x == (1.0, 2.0, 4.0, 8.0, 32.0, 128.0)
    assert (lookup.load_s, lookup.bytes) == (0.0, 0) and lookup.forward.at(1) < draft.forward.at(1)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    assert CostModel(profile, models.zoo.draft_names).forward_s(5, 100) > 0


def test_a_draft_that_cannot_be_loaded_is_named(models: LiveModels) -> None:
    models.zoo.draft_path(0).write_bytes(b"no draft")
    with pytest.raises(UserError, match=r"sometimes\.draft\.safetensors"):
        measure_profile(models, threads=1, progress=False)


def test_a_zoo_without_weights_has_no_contention(models: LiveModels) -> None:
    zoo = dataclasses.replace(models.zoo, drafts=models.zoo.drafts[1:])
    bench = Bench(dataclasses.replace(models, zoo=zoo))
    assert bench.slowdown({"lookup": 0.0}) == (1.0, 1.0)
    bench.close()


def test_contention_is_what_a_slow_load_costs(models: LiveModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take 10 ms alone and 20 ms beside a load of 100 ms (50 ms alone): both are slowed down twofold."""
    bench = Bench(models)
    started: list[float] = []

    def step(width: int, context: int) -> None:
        time.sleep(0.02 if started else 0.01)

    def poll() -> list[Loaded]:
        if time.perf_counter() - started[-1] < 0.1:
            return []
        started.clear()
        return [Loaded(0, None, 0.1)]

    monkeypatch.setattr(bench, "_verify", step)
    monkeypatch.setattr(bench.loader, "start", lambda index: started.append(time.perf_counter()))
    monkeypatch.setattr(bench.loader, "poll", poll)
    slowdown = bench.slowdown({"sometimes": 0.05, "lookup": 0.0})
    bench.close()
    assert slowdown.load == pytest.approx(2.0)
    assert 1.5 < slowdown.decode < 3.5


def test_pieces_are_timed_in_turn() -> None:
    order: list[int] = []
    points = timed({2: lambda: order.append(2), 1: lambda: order.append(1)}, 6, lambda: None)
    assert order == [2, 1] * 8
    assert curve(points).x == (1.0, 2.0)
    assert median_of([1.0, 2.0, 4.0, 5.0, 3.0]) == (3.0, 1.0)
