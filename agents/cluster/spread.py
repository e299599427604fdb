"""Work that would use all cores of this machine, over all nodes of a cluster instead: the same calls, the same answers.

What is sent is the function that ``agents.workers.over_all_cores`` would have called in a forked process, once for the
whole of its items; a node that dies has its items computed by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agents.cluster.ray_cluster import connected
from agents.workers import elsewhere

_unpacked: dict[str, Any] = {}
"""The function that this worker unpacked last, by the name of Ray's copy of it."""


@contextmanager
def over_the_cluster(address: str | None = None, max_retries: int = 3) -> Iterator[None]:
    """Inside, ``over_all_cores`` hands its items to a cluster.

    Args:
        address: See ``connected``.
        max_retries: Attempts after the first one, of items whose node was killed.

    Raises:
        UserError: If there is no such cluster.
    """
    with connected(address) as ray:
        task = ray.remote(num_cpus=1, max_retries=max_retries)(_call)

        def spread(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            packed = [ray.put(work)]  # in a list: Ray hands over the reference, and a worker unpacks it once
            pending = {task.remote(packed, item): index for index, item in enumerate(items)}
            while pending:
                (done, *_), _rest = ray.wait(list(pending), num_returns=1)
                yield pending.pop(done), ray.get(done)

        with elsewhere(spread):
            yield


def _call(packed: list[Any], item: Any) -> Any:
    import ray
    import torch

    torch.set_num_threads(1)
    name = packed[0].hex()
    if name not in _unpacked:
        _unpacked.clear()
        _unpacked[name] = ray.get(packed[0])
    return _unpacked[name](item)
