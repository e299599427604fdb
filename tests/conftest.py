"""What is built once for all tests."""

from __future__ import annotations

import signal

import pytest

from tests.tiny_zoo import TinyZoo, build_tiny_zoo


def pytest_configure() -> None:
    """Ctrl-C works in what is tested, also where the tests were started in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_zoo(tmp_path_factory: pytest.TempPathFactory) -> TinyZoo:
    """A whole zoo in small with a bundle; read-only."""
    return build_tiny_zoo(tmp_path_factory.mktemp("tiny"))
