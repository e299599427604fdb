"""Work on all cores: a function over items, in forked processes that share what was prepared before.

Nothing is copied to the workers but the index of an item: they see the parent's memory as it was when they began. Where
forking is not to be had, the work is done here, one item after another.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import torch

from runtime.threads import usable_threads

Item = TypeVar("Item")
Result = TypeVar("Result")

Spread: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[tuple[int, Any]]]
"""What ``over_all_cores`` does, by other means: from work and items to ``(index, result)``."""

_spread: Spread | None = None
_work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None


def over_all_cores(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int = 0
) -> Iterator[tuple[int, Result]]:
    """``(index, work(item))`` of every item, in the order in which they are done.

    Args:
        work: Any callable, a closure too; what it returns must be picklable.
        items: Its arguments, one call each.
        workers: Processes; 0 = one for each usable core, 1 = no processes.
    """
    global _work
    if _spread is not None and workers != 1:
        yield from _spread(work, items)
        return
    count = min(workers or usable_threads(), len(items))
    if count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from ((index, work(item)) for index, item in enumerate(items))
        return
    _work = (work, items)
    try:
        with ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _begin) as pool:
            running = {pool.submit(_one, index): index for index in range(len(items))}
            for done in as_completed(running):
                yield running[done], done.result()
    finally:
        _work = None


@contextmanager
def elsewhere(spread: Spread) -> Iterator[None]:
    """Inside, work for all cores is given to ``spread`` instead: to other machines, for example."""
    global _spread
    before, _spread = _spread, spread
    try:
        yield
    finally:
        _spread = before


def _begin() -> None:
    torch.set_num_threads(1)


def _one(index: int) -> Any:
    assert _work is not None, "the worker was forked while there is work"
    work, items = _work
    return work(items[index])
