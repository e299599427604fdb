"""A thread that loads gets a core of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from runtime.engine.native import team
from runtime.loading import FileWork


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(team, "_cores", 2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("threads", "beside"), [(1, 1), (2, 1), (3, 2)])
def test_kernels_leave_a_core(threads: int, beside: int) -> None:
    torch.set_num_threads(threads)
    assert team.size() == threads
    with team.working_beside():
        assert team.size() == beside
        with team.working_beside():
            assert team.size() == beside
        assert team.size() == beside
    assert team.size() == threads


def test_where_a_core_is_free_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    monkeypatch.setattr(team, "_cores", 3)
    with team.working_beside():
        assert team.size() == 2


def test_a_load_is_such_work() -> None:
    torch.set_num_threads(2)
    seen: list[int] = []

    def load(*_: object) -> None:
        seen.append(team.size())
        raise OSError("damaged")

    work = FileWork([Path(__file__)], load=load)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="damaged"):
        work(0)
    assert seen == [1]
    assert team.size() == 2
