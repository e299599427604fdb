"""What is built once for all tests."""

from __future__ import annotations

import pytest

from tests.tiny_zoo import TinyZoo, build_tiny_zoo


@pytest.fixture(scope="session")
def tiny_zoo(tmp_path_factory: pytest.TempPathFactory) -> TinyZoo:
    """A whole zoo in small with a bundle; read-only."""
    return build_tiny_zoo(tmp_path_factory.mktemp("tiny"))
