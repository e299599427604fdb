"""Jobs on the virtual clock: one at a time, the most urgent first, while decoding goes on.

A load of ``load_s`` seconds (alone on the device) needs ``load_s`` seconds of *progress*. While the decoder works,
progress is made at rate ``1 / load_slowdown`` and the decoder itself runs at rate ``1 / decode_slowdown``; while
nothing else runs (a stall, an idle device), at rate 1.
"""

from __future__ import annotations

from envs.replay.clock import VirtualClock
from runtime.memory.base import Job, Loaded, ReadKV, WriteKV, urgency
from runtime.profile import CostModel


class VirtualLoader:
    """A ``Loader`` that takes time and brings nothing: payloads are None, or lists of None.

    Args:
        costs: Load times and contention.
        clock: Moved by ``work`` and ``wait``.
    """

    def __init__(self, costs: CostModel, clock: VirtualClock) -> None:
        self.clock = clock
        self._costs = costs
        self._decode_slowdown = max(1.0, costs.profile.decode_slowdown)
        self._load_slowdown = max(1.0, costs.profile.load_slowdown)
        self._queue: list[Job] = []  # the first is running
        self._left_s = 0.0  # progress the load at the head of the queue still needs
        self._begun_s = self._synced_s = clock.now_s()
        self._finished: list[Loaded] = []

    @property
    def busy(self) -> bool:
        """Whether a load is running now."""
        self._sync()
        return bool(self._queue)

    def start(self, job: Job) -> None:
        self._sync()
        if job in self._queue:
            return
        self._queue[1:] = sorted([*self._queue[1:], job], key=urgency) if self._queue else []
        if not self._queue:
            self._queue.append(job)
            self._begin_head()

    def poll(self) -> list[Loaded]:
        self._sync()
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job: Job) -> None:
        self._sync()
        while job in self._queue:
            self.clock.advance(self._left_s)
            self._synced_s = self.clock.now_s()
            self._end_head()

    def fraction(self, draft: int) -> float:
        self._sync()
        if any(loaded.job == draft for loaded in self._finished):
            return 1.0
        if not self._queue or self._queue[0] != draft:
            return 0.0
        whole_s = self._costs.load_s(draft)
        return 1.0 - self._left_s / whole_s if whole_s > 0 else 1.0

    def close(self) -> None:
        self._queue.clear()
        self._finished.clear()

    def work(self, seconds: float) -> None:
        """Let the decoder do work that takes ``seconds`` alone on the device; longer while a load runs."""
        self._sync()
        clock = self.clock
        while self._queue:
            until_loaded_s = self._left_s * self._load_slowdown
            needed_s = seconds * self._decode_slowdown
            if needed_s < until_loaded_s:
                clock.advance(needed_s)
                self._left_s -= needed_s / self._load_slowdown
                self._synced_s = clock.now_s()
                return
            clock.advance(until_loaded_s)
            seconds -= until_loaded_s / self._decode_slowdown
            self._synced_s = clock.now_s()
            self._end_head()
        clock.advance(max(seconds, 0.0))
        self._synced_s = clock.now_s()

    def _sync(self) -> None:
        """Give loads the time in which nothing else ran."""
        idle_s = self.clock.now_s() - self._synced_s
        while self._queue and idle_s >= self._left_s:
            idle_s -= self._left_s
            self._synced_s += self._left_s
            self._end_head()
        if self._queue:
            self._left_s -= idle_s
        self._synced_s = self.clock.now_s()

    def _begin_head(self) -> None:
        self._left_s = self._seconds(self._queue[0])
        self._begun_s = self._synced_s

    def _end_head(self) -> None:
        job = self._queue.pop(0)
        payload = [None] * len(job.nodes) if isinstance(job, ReadKV) else None
        self._finished.append(Loaded(job, payload, self._synced_s - self._begun_s))
        if self._queue:
            self._begin_head()

    def _seconds(self, job: Job) -> float:
        """What a job takes alone on the device."""
        if isinstance(job, ReadKV):
            return self._costs.kv_load_s(job.tokens)
        return self._costs.kv_save_s(job.tokens) if isinstance(job, WriteKV) else self._costs.load_s(job)
