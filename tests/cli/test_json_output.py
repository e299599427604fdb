"""Commands that look at bundles and devices, read by programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.cli import main, profile
from runtime.profile import Profile
from tests.factories import make_profile
from tests.tiny_zoo import TinyZoo, copied

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    assert main(list(arguments)) == code
    return json.loads(capsys.readouterr().out)


def test_verify_says_whole(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    folder = str(tiny_zoo.bundle)
    assert printed(capsys, "verify", folder, "--json") == {"bundle": folder, "whole": True, "error": None}


def test_verify_says_what_is_not_whole(tiny_zoo: TinyZoo, capsys: Capture, tmp_path: Path) -> None:
    folder = copied(tiny_zoo.bundle, tmp_path / "bundle")
    (folder / "policy.onnx").unlink()
    assert main(["verify", str(folder), "--json"]) == 2
    shown = capsys.readouterr()
    verdict = json.loads(shown.out)
    assert verdict["whole"] is False and "policy.onnx is missing" in verdict["error"]
    assert shown.err == f"specpilot verify: {verdict['error']}\n"


def test_pull_says_where_a_target_is(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    expected = {"sources": [str(tiny_zoo.target)], "folder": str(tiny_zoo.target)}
    assert printed(capsys, "pull", str(tiny_zoo.target), "--json") == expected
    assert printed(capsys, "pull", "--bundle", str(tiny_zoo.bundle), "--json") == expected
    assert main(["pull", str(tiny_zoo.target)]) == 0
    assert capsys.readouterr().out == f"{tiny_zoo.target}\n"


def test_a_profile_printed_is_a_profile(tiny_zoo: TinyZoo, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = make_profile(tiny_zoo.zoo.draft_names)
    monkeypatch.setattr(profile, "device_profile", lambda *_, **__: measured)
    data = printed(capsys, "profile", "--bundle", str(tiny_zoo.bundle), "--json")
    assert Profile.from_json(data, "stdout") == measured


def test_a_profile_that_cannot_be_written_is_told(
    tiny_zoo: TinyZoo, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("it was measured first")

    monkeypatch.setattr(profile, "device_profile", refused)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "profile.json", tmp_path):
        assert main(["profile", "--bundle", str(tiny_zoo.bundle), "--out", str(out)]) == 2
        assert f"specpilot profile: --out {out} cannot be written" in capsys.readouterr().err
    monkeypatch.setattr(profile, "device_profile", lambda *_, **__: make_profile(tiny_zoo.zoo.draft_names))
    out = tmp_path / "profile.json"
    assert main(["profile", "--bundle", str(tiny_zoo.bundle), "--out", str(out)]) == 0
    assert Profile.load(out) == make_profile(tiny_zoo.zoo.draft_names)
