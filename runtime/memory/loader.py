"""The loader that really reads and writes, in a background thread.

One long-lived thread does all jobs, one after another: a thread that uses OpenMP for the first time starts a pool of
its own, and that is paid once. Reads may come from the page cache of the operating system: a second load of the same
file can be faster than the first from storage. Nothing is done about that; it is how the device behaves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from runtime.errors import UserError
from runtime.memory.base import Job, Loaded, urgency

LOGGER = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for a running load; a load that takes longer is abandoned with the daemon thread."""

DEFAULT_LOAD_S = 1.0
"""Expected load time of a draft nobody measured; only ``fraction`` depends on it."""


class ThreadLoader:
    """Implements ``Loader``.

    Args:
        work: Does one job and returns its payload; may raise.
        expected_s: Load time by draft index, from a profile; refined by every load.
        prepare: Called once in the thread before its first job.
    """

    def __init__(
        self,
        work: Callable[[Job], Any],
        expected_s: Sequence[float] = (),
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._work, self._prepare = work, prepare
        self._expected_s = dict(enumerate(expected_s))
        self._changed = threading.Condition()  # guards everything below
        self._queue: list[Job] = []
        self._finished: list[Loaded] = []
        self._running: Job | None = None
        self._started_s = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, job: Job) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("start() on a closed loader: make a new one")
            if job in self._queue or job == self._running:
                return
            self._queue.append(job)
            self._queue.sort(key=urgency)  # stable: equals in the order they came
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="specpilot-loader", daemon=True)
                self._thread.start()

    def poll(self) -> list[Loaded]:
        if not self._finished:  # this is called every round
            return []
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, job: Job) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (job not in self._queue and job != self._running))

    def fraction(self, draft: int) -> float:
        with self._changed:
            if draft != self._running:
                return 0.0
            elapsed_s = time.perf_counter() - self._started_s
            return min(0.99, elapsed_s / max(self._expected_s.get(draft, DEFAULT_LOAD_S), 1e-6))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                LOGGER.warning("a job is still running after %.0f s: it is abandoned", CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._prepare()
        except Exception:
            LOGGER.warning("the loader's thread goes on unprepared", exc_info=True)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._queue))
                if self._closed:
                    return
                job = self._queue.pop(0)
                self._running, self._started_s = job, time.perf_counter()
            loaded = self._do(job)
            with self._changed:
                self._running = None
                if not self._closed:
                    self._finished.append(loaded)
                if isinstance(job, int) and loaded.error is None:
                    self._expected_s[job] = loaded.seconds
                self._changed.notify_all()
            del loaded, job  # what is given up later must not live on here

    def _do(self, job: Job) -> Loaded:
        started_s = time.perf_counter()
        payload, error = None, None
        try:
            payload = self._work(job)
        except UserError as refused:
            error = str(refused)
        except Exception as failure:  # the thread must live on, whatever a file does to a reader
            LOGGER.debug("%s failed", job, exc_info=True)
            error = f"{type(failure).__name__}: {failure}"
        return Loaded(job, payload, time.perf_counter() - started_s, error)
