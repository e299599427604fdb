"""The loader that really reads draft files, in a background thread.

One long-lived thread does all loads, one after another: a thread that uses OpenMP for the first time starts a pool of
its own, and that is paid once. Reads may come from the page cache of the operating system: a second load of the same
file can be faster than the first from storage. Nothing is done about that; it is how the device behaves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import UserError
from runtime.memory.base import Loaded

LOGGER = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for a running load; a load that takes longer is abandoned with the daemon thread."""

DEFAULT_LOAD_S = 1.0
"""Expected load time of a draft nobody measured; only ``fraction`` depends on it."""


class ThreadLoader:
    """Implements ``Loader``.

    Args:
        paths: Draft file by draft index; None for a draft without weights.
        read: Brings one file into compute memory; may raise.
        expected_s: Load time by draft index, from a profile; refined by every load.
        prepare: Called once in the thread before its first load.
    """

    def __init__(
        self,
        paths: Sequence[Path | None],
        read: Callable[[Path], Any],
        expected_s: Sequence[float] | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._paths = tuple(paths)
        self._read, self._prepare = read, prepare
        self._expected_s = list(expected_s) if expected_s is not None else [DEFAULT_LOAD_S] * len(self._paths)
        self._changed = threading.Condition()  # guards everything below
        self._queue: deque[int] = deque()
        self._finished: list[Loaded] = []
        self._running: int | None = None
        self._started_s = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, draft: int) -> None:
        if self._paths[draft] is None:
            raise ValueError(f"expected a draft with a file, got draft {draft}: it has no weights to load")
        with self._changed:
            if self._closed:
                raise RuntimeError("start() on a closed loader: make a new one")
            if draft in self._queue or draft == self._running:
                return
            self._queue.append(draft)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="specpilot-loader", daemon=True)
                self._thread.start()

    def poll(self) -> list[Loaded]:
        if not self._finished:  # this is called every round
            return []
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, draft: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (draft not in self._queue and draft != self._running))

    def fraction(self, draft: int) -> float:
        with self._changed:
            if draft != self._running:
                return 0.0
            elapsed_s = time.perf_counter() - self._started_s
            return min(0.99, elapsed_s / max(self._expected_s[draft], 1e-6))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                LOGGER.warning("a draft is still loading after %.0f s: it is abandoned", CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        self._prepare()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._queue))
                if self._closed:
                    return
                draft = self._queue.popleft()
                self._running, self._started_s = draft, time.perf_counter()
            loaded = self._load(draft)
            with self._changed:
                self._running = None
                if not self._closed:
                    self._finished.append(loaded)
                if loaded.error is None:
                    self._expected_s[draft] = loaded.seconds
                self._changed.notify_all()
            del loaded  # a draft evicted later must not live on here

    def _load(self, draft: int) -> Loaded:
        path = self._paths[draft]
        assert path is not None
        started_s = time.perf_counter()
        payload, error = None, None
        try:
            payload = self._read(path)
        except UserError as refused:
            error = str(refused)
        except Exception as failure:  # the thread must live on, whatever a file does to a reader
            LOGGER.debug("loading %s failed", path, exc_info=True)
            error = f"{path}: cannot be loaded ({type(failure).__name__}: {failure}); copy or distill it again"
        return Loaded(draft, payload, time.perf_counter() - started_s, error)
