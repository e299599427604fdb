"""Threads when nobody says how many."""

from __future__ import annotations

import os

import pytest

from runtime.threads import usable_threads


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("2,1", 2)])
def test_the_users_own_wish_counts(value: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert usable_threads() == expected


@pytest.mark.parametrize("value", ["", "0", "many"])
def test_else_the_cores_of_this_process(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert usable_threads() == 3
