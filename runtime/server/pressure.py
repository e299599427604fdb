"""Memory pressure from outside: what others need is set aside from the budget, and taken back when they are done.

    available memory   [ kept free ][ what the budget may still grow by ]
    budget             [ in use    ][ the same                          ][ set aside ]

Drafts and stored KV that do not fit any more are dropped by the usual rules; decoding goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from runtime.engine.malloc import release_free_memory
from runtime.server.free_memory import available_bytes, shares_memory
from runtime.session import DecodeSession

LOGGER = logging.getLogger(__name__)

CHECK_S = 2.0
"""Least time between two looks at the machine's memory."""
RELIEF_SHARE = 0.125
"""Of the memory that is kept free: so much more must be available before pressure counts as over."""


class Pressure:
    """Watches the machine's memory for a session; belongs to the thread that owns the session.

    Args:
        session: Whose budget gives way.
        keep_free_bytes: How much memory is to stay available; 0 = nothing is watched.
        device: Where drafts and KV are; a GPU with memory of its own is not watched.
        available: Bytes available, None = unknown; as it comes, what the system says.
        clock: Seconds.
    """

    def __init__(
        self,
        session: DecodeSession,
        keep_free_bytes: int,
        device: torch.device,
        available: Callable[[], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._floor, self._device = session, keep_free_bytes, device
        self._available, self._clock = available or available_bytes, clock
        self._watching = keep_free_bytes > 0 and shares_memory(device)
        self._next_s = float("-inf")
        self._told = False

    def check(self) -> None:
        """Look at the machine's memory, if the last look was a while ago, and set aside what is needed.

        To be called between two steps of the session.
        """
        if not self._watching or self._clock() < self._next_s:
            return
        self._next_s = self._clock() + CHECK_S
        available = self._available()
        if available is None:
            self._watching = False
            return
        memory = self._session.memory
        spare = available - self._floor
        missing = memory.config.budget_bytes - (memory.used_bytes + spare)  # of what the budget may grow to
        aside = min(max(missing, 0), memory.config.budget_bytes)
        if aside != memory.aside_bytes or memory.free_bytes < 0:
            before = memory.used_bytes
            self._session.set_aside(aside)
            if memory.used_bytes < before:
                self._give_back()
        self._tell(available, missing, aside)

    def _give_back(self) -> None:
        """What was dropped goes back to the machine, also where the allocator would keep it."""
        release_free_memory()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _tell(self, available: int, missing: int, aside: int) -> None:
        """One line when pressure begins and one when it is over, however it varies in between."""
        if not self._told and aside > 0:
            self._told = True
            LOGGER.warning(
                "the machine has %.0f MB of memory left, %.0f are to stay free: %.0f MB of the budget are set aside "
                "for now, with fewer drafts and stored KV in memory",
                available / 1e6,
                self._floor / 1e6,
                aside / 1e6,
            )
        elif self._told and missing <= -RELIEF_SHARE * self._floor:
            self._told = False
            LOGGER.warning("the machine has memory again (%.0f MB): the whole budget may be used", available / 1e6)
