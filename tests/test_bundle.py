"""A bundle is whole or absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime import bundle as module
from runtime.bundle import POLICY, read_bundle, write_bundle
from runtime.control.static import plain_controller
from runtime.profile import Profile
from tests.tiny_zoo import TinyZoo

MEMORY = {"budget_bytes": 10, "workspace_bytes": 1, "kv_reserve_tokens": 8, "decision_interval": 4}


def write(tiny: TinyZoo, folder: Path) -> None:
    write_bundle(folder, tiny.bundle / POLICY, tiny.zoo, Profile.load(tiny.profile), MEMORY, {"seed": 3})


def test_what_was_written_is_read(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    write(tiny_zoo, tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.zoo.manifest() == tiny_zoo.zoo.manifest()
    assert bundle.profile == Profile.load(tiny_zoo.profile)
    assert bundle.manifest["memory"] == MEMORY and bundle.manifest["training"] == {"seed": 3}
    bundle.zoo.verify_files()
    assert bundle.controller().name == "policy" != plain_controller(3).name
    assert not list((tmp_path / "bundle").rglob("*.pkl")) and not list((tmp_path / "bundle").rglob("*.pt"))


@pytest.mark.parametrize("where", ["sha256_file", "_copy", "write_json", "library_versions"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt("stop")], ids=["error", "interrupt"])
def test_an_interrupted_write_leaves_nothing(
    tiny_zoo: TinyZoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    real, calls = getattr(module, where), []

    def fails_at_last(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == (2 if where in ("sha256_file", "_copy") else 1):
            raise error
        return real(*arguments)

    monkeypatch.setattr(module, where, fails_at_last)
    with pytest.raises(type(error), match=str(error)):
        write(tiny_zoo, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    write(tiny_zoo, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_run_that_goes_on_replaces_its_bundle(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    write(tiny_zoo, tmp_path / "bundle")
    (tmp_path / "bundle" / "left over").touch()
    tiny, profile = tiny_zoo, Profile.load(tiny_zoo.profile)
    write_bundle(tmp_path / "bundle", tiny.bundle / POLICY, tiny.zoo, profile, MEMORY, {"seed": 4}, replace=True)
    assert read_bundle(tmp_path / "bundle").manifest["training"] == {"seed": 4}
    assert not (tmp_path / "bundle" / "left over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_an_existing_bundle_is_not_touched(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    write(tiny_zoo, tmp_path / "bundle")
    before = (tmp_path / "bundle" / "manifest.json").read_bytes()
    with pytest.raises(OSError, match="not empty"):
        write(tiny_zoo, tmp_path / "bundle")
    assert (tmp_path / "bundle" / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
