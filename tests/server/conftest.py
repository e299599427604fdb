"""Servers that several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.machine import Machine
from tests.server.serving import Running, running
from tests.tiny_zoo import TinyZoo, copied


@pytest.fixture(scope="session")
def server(tiny_zoo: TinyZoo) -> Iterator[Running]:
    """The bundle's own policy decides."""
    with running(tiny_zoo.bundle) as one:
        yield one


@pytest.fixture(scope="session")
def steady(tiny_zoo: TinyZoo) -> Iterator[Running]:
    """A draft that is always there, one length, stored prefixes reused: the same request takes the same course."""
    with running(tiny_zoo.bundle, "static:lookup:4") as one:
        yield one


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Available memory in the test's hands."""
    return Machine(monkeypatch)


@pytest.fixture
def bundle(tiny_zoo: TinyZoo, tmp_path: Path) -> Path:
    """A copy of the bundle whose files may be changed."""
    return copied(tiny_zoo.bundle, tmp_path / "bundle")
