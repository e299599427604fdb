"""A device is measured once, and who waits is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import live, profiling
from runtime.device import device_profile
from tests.factories import make_profile
from tests.tiny_zoo import TinyZoo


def test_a_measurement_is_told_and_kept(
    tiny_zoo: TinyZoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_profile(tiny_zoo.zoo.draft_names)
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path))
    monkeypatch.setattr(live, "open_models", lambda *_, **__: None)
    monkeypatch.setattr(profiling, "measure_profile", lambda *_, **__: made)
    assert device_profile(tiny_zoo.zoo, threads=1) == made
    assert "measuring what transformers costs in float32" in capsys.readouterr().err
    assert device_profile(tiny_zoo.zoo, threads=1) == made
    assert capsys.readouterr().err == ""
