"""The one thread that owns the models: it opens them, serves what waits, and closes them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from runtime.live import Served
from runtime.server.driver import Driver
from runtime.server.faults import ApiError, busy, closing
from runtime.server.jobs import Failed, Job
from runtime.server.metrics import Metrics
from runtime.server.waiting import Full, WaitingRoom

LOGGER = logging.getLogger(__name__)

IDLE_S = 0.5
"""How often an idle device looks for loads that have finished."""

LONGEST_RETRY_S = 120
MEAN_WEIGHT = 0.8
"""Weight of the earlier requests in the mean time of a request."""

Opener = Callable[[], AbstractContextManager[Served]]


class Worker:
    """Runs jobs on the device. Its methods may be called from any thread.

    Args:
        open_: Opens what is served, in the worker's thread; PyTorch's settings belong to a thread.
        metrics: Where everything is counted.
        places: Most jobs that wait.
        keep_free_bytes: Memory of the machine that is to stay available; 0 = it is not watched.
    """

    def __init__(self, open_: Opener, metrics: Metrics, places: int, keep_free_bytes: int = 0) -> None:
        self._open, self._metrics, self._keep_free_bytes = open_, metrics, keep_free_bytes
        self.room: WaitingRoom[Job] = WaitingRoom(places)
        metrics.waiting.set_function(lambda: len(self.room))
        self._running: Job | None = None
        self._closing, self._stopping = threading.Event(), threading.Event()
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._served: Served | None = None
        self._driver: Driver | None = None
        self._mean_s = 1.0
        self._thread = threading.Thread(target=self._run, name="specpilot-device", daemon=True)

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> Served:
        """Open the models and begin to serve; returns what is served, for reading only.

        Raises:
            UserError: If they cannot be opened.
        """
        self._thread.start()
        self._opened.wait()
        if self._served is None:
            assert self._failure is not None
            raise self._failure
        return self._served

    def drain(self) -> None:
        """Let the job in hand finish; refuse those that wait, and new ones."""
        self._closing.set()
        self.room.close(lambda job: job.tell(Failed(closing())))

    def stop(self, timeout_s: float) -> bool:
        """End now: the job in hand is cancelled. Whether the thread ended in time."""
        self._stopping.set()
        self.drain()
        running = self._running
        if running is not None:
            self.give_up(running, closing())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def started(self) -> bool:
        """Whether there is a thread to end."""
        return self._thread.ident is not None

    @property
    def healthy(self) -> bool:
        """Whether new jobs are served."""
        return self._thread.is_alive() and self._opened.is_set() and not self._closing.is_set()

    @property
    def idle(self) -> bool:
        """Whether no job is in hand."""
        return self._running is None

    @property
    def state(self) -> Mapping[str, Any]:
        """What is in memory, as of a moment ago."""
        return self._driver.state if self._driver is not None else {}

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn.

        Raises:
            ApiError: If there is no place for it (429), or the server ends (503).
        """
        if not self.healthy:
            raise closing()
        try:
            pushed_out = self.room.add(job)
        except Full:
            if self._closing.is_set():
                raise closing() from None
            raise self._busy() from None
        if pushed_out is not None:
            pushed_out.tell(Failed(self._busy()))

    def give_up(self, job: Job, why: ApiError) -> None:
        """End a job early, wherever it is; nothing happens if it is over."""
        if job.over or job.given_up is not None:
            return
        job.given_up = why  # before the session is asked: a job that is just being started looks here afterwards
        if self.room.remove(job):
            job.tell(Failed(why))
        elif self._served is not None:
            self._served.session.cancel(job.request.request_id)

    def _busy(self) -> ApiError:
        waiting = len(self.room)
        return busy(waiting, min(LONGEST_RETRY_S, max(1, math.ceil(self._mean_s * (waiting + 1)))))

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open() as served:
                driver = Driver(served, self._metrics, self.room.next, self._keep_free_bytes)
                self._driver, self._served = driver, served
                self._opened.set()
                self._serve(driver)
        except BaseException as error:
            self._failure = error
            if self._opened.is_set():
                LOGGER.critical("the device's thread has ended", exc_info=True)
        finally:
            self._opened.set()
            self.drain()

    def _serve(self, driver: Driver) -> None:
        while True:
            job = self.room.take(IDLE_S)
            if job is None:
                if self._closing.is_set():
                    return
                driver.look()
                continue
            self._running, started_s = job, time.perf_counter()
            if self._stopping.is_set():  # it was taken just before
                self.give_up(job, closing())
            driver.serve(job)
            self._running = None
            self._mean_s = MEAN_WEIGHT * self._mean_s + (1.0 - MEAN_WEIGHT) * (time.perf_counter() - started_s)
