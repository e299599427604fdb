"""A machine whose available memory a test sets."""

from __future__ import annotations

import pytest

ENOUGH = 1 << 60
"""Bytes available when nothing is short."""


class Machine:
    """Stands behind every server that is started from now on.

    Attributes:
        available: Bytes available now.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.available = ENOUGH
        monkeypatch.setattr("runtime.server.pressure.available_bytes", lambda: self.available)
        monkeypatch.setattr("runtime.server.pressure.CHECK_S", 0.05)
