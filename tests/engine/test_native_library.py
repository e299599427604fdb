"""The library of compiled kernels: compiled once, made again if damaged, done without where there is no compiler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.engine.native import library
from runtime.engine.native.install import install
from runtime.engine.native.library import kernels
from runtime.engine.transformers_model import TransformersModel
from tests.tiny import SETTINGS, VOCAB, random_model

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler")


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The library is looked for anew, in an empty cache folder, now and behind the test."""
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path))
    kernels.cache_clear()
    yield tmp_path
    kernels.cache_clear()


def test_without_a_compiler_there_are_none(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert kernels() is None
    assert install(random_model("llama", SETTINGS)) == 0
    model = TransformersModel(random_model("llama", SETTINGS))
    assert model.forward([5, 6, 7], "all").shape == (3, VOCAB)


def test_a_compiler_that_fails_is_no_error(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = afresh / "cc"
    broken.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert kernels() is None
    assert not list(afresh.rglob("*.so"))


def test_they_can_be_turned_off(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "0")
    assert kernels() is None


def test_they_are_compiled_once(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels() is not None
    assert len(list(afresh.rglob("*.so"))) == 1
    kernels.cache_clear()
    monkeypatch.setattr(library, "_compile", lambda compiler, path: pytest.fail("compiled again"))
    assert kernels() is not None


def test_a_damaged_library_is_made_again(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels() is not None
    (whole,) = afresh.rglob("*.so")
    damaged = afresh / "other" / whole.relative_to(afresh)  # a path of its own: one that is open is not opened again
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"\x7fELF")
    monkeypatch.setenv("SPECPILOT_CACHE", str(afresh / "other"))
    kernels.cache_clear()
    assert kernels() is not None
    assert damaged.stat().st_size == whole.stat().st_size


def test_threads_that_ask_at_once_compile_once(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's thread and the decoder's may both be the first; two compilers would write into one file."""
    compiled, compile_ = [], library._compile

    def slowly(compiler: str, path: Path) -> None:
        compiled.append(path)
        time.sleep(0.1)
        compile_(compiler, path)

    monkeypatch.setattr(library, "_compile", slowly)
    with ThreadPoolExecutor(4) as pool:
        got = [each.result() for each in [pool.submit(kernels) for _ in range(4)]]
    assert len(compiled) == 1
    assert None not in got
