"""Kernels as other processors have them."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from runtime.engine.native import library
from runtime.engine.native.integers import has_integers
from runtime.engine.native.library import kernels


@pytest.fixture
def older(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The kernels of a processor without some instructions, in this test only."""
    if platform.machine() != "x86_64":
        pytest.skip("instructions of x86-64")
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path_factory.getbasetemp() / "older"))  # compiled once for all tests
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, request.param))
    kernels.cache_clear()
    assert not has_integers()
    yield
    kernels.cache_clear()
