"""On which engine and in which format a bundle runs, and whose costs it goes by then."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import pytest

from runtime.bundle import read_bundle
from runtime.cli import running as module
from runtime.cli.running import running
from runtime.errors import UserError
from runtime.profile import Profile
from tests.tiny_zoo import TinyZoo


def options(**changes: Any) -> argparse.Namespace:
    usual = {"engine": "auto", "dtype": "auto", "target": None, "device": "cpu", "threads": 1, "controller": "policy"}
    return argparse.Namespace(**{**usual, **changes})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tiny_zoo: TinyZoo) -> list[tuple[str, str]]:
    """(engine, dtype) of every measurement that was asked for; what is measured is ten times as slow."""
    asked: list[tuple[str, str]] = []

    def measure(*_: object, engine: str, dtype: str) -> Profile:
        asked.append((engine, dtype))
        known = read_bundle(tiny_zoo.bundle).profile
        slow = dataclasses.replace(known.forward, seconds=tuple(10 * s for s in known.forward.seconds))
        return dataclasses.replace(known, engine=engine, dtype=dtype, forward=slow)

    monkeypatch.setattr(module, "device_profile", measure)
    return asked


def test_what_was_measured_is_what_runs(tiny_zoo: TinyZoo, measured: list[tuple[str, str]]) -> None:
    bundle = read_bundle(tiny_zoo.bundle)
    for dtype in ("float32", "int8"):
        known = dataclasses.replace(bundle.profile, engine="transformers", dtype=dtype)
        found = running(options(), dataclasses.replace(bundle, profile=known))
        assert (found.engine, found.dtype, found.costs.profile) == ("transformers", dtype, known)
        assert running(options(dtype=dtype), dataclasses.replace(bundle, profile=known)).costs.profile is known
    native = dataclasses.replace(bundle.profile, engine="llamacpp", dtype="float16")
    found = running(options(), dataclasses.replace(bundle, profile=native))
    assert (found.engine, found.dtype) == ("llamacpp", "float32")  # runs the file as it is
    assert measured == []


def test_another_format_has_costs_of_its_own(tiny_zoo: TinyZoo, measured: list[tuple[str, str]]) -> None:
    bundle = read_bundle(tiny_zoo.bundle)
    known = dataclasses.replace(bundle.profile, engine="transformers", dtype="float32")
    bundle = dataclasses.replace(bundle, profile=known)
    found = running(options(dtype="int8", controller="stacked"), bundle)
    assert measured == [("transformers", "int8")]
    assert (found.dtype, found.costs.profile.dtype) == ("int8", "int8")
    with pytest.raises(UserError, match=r"verifying 5 tokens takes .* expected at most 4 times"):
        running(options(dtype="int8"), bundle)


def test_a_format_that_does_not_exist_is_refused(tiny_zoo: TinyZoo, measured: list[tuple[str, str]]) -> None:
    with pytest.raises(UserError, match="unknown dtype 'int4'"):
        running(options(dtype="int4"), read_bundle(tiny_zoo.bundle))
    assert measured == []
