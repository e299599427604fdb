"""One exactness run in this process, or shared by several."""

from __future__ import annotations

import multiprocessing
import queue
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.exactness.serving import run
from benchmarks.exactness.tally import Tally
from envs.traces import TraceSet
from runtime.engine.base import TargetModel
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from runtime.live import open_models
from runtime.zoo import Zoo

SPLITS = ("train", "heldout")
SEED_STEP = 1_000_003
"""Between the seeds of two workers."""
POLL_S = 1.0

Facts = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """One run.

    Attributes:
        zoo: Folder of the zoo.
        target: Another source of the target; None = the zoo's own.
        device: Torch device.
        dtype: Of the target.
        guard: Whether near-ties are decided again.
        tokens: Tokens to compare, of all workers together.
        seed: Of the first worker.
        workers: Processes.
        threads: Torch threads of each.
    """

    zoo: Path
    target: str | None
    device: str
    dtype: str
    guard: bool
    tokens: int
    seed: int
    workers: int
    threads: int

    def to_json(self) -> dict[str, Any]:
        """For reports; without paths."""
        return {name: value for name, value in asdict(self).items() if name not in {"zoo", "target"}}


def measure(settings: Settings, progress: bool = True) -> tuple[Tally, Facts]:
    """Run, and say what ran.

    Raises:
        UserError: If zoo, traces or target cannot be had.
        RuntimeError: If a worker process dies.
    """
    name = f"{settings.dtype}, guard {'on' if settings.guard else 'off'}"
    with tqdm(total=settings.tokens, desc=name, unit="tokens", disable=not progress) as bar:
        if settings.workers == 1:
            return _work(settings, lambda done: _advance(bar, done))
        return _shared(settings, bar)


def _advance(bar: Any, done: int) -> None:
    bar.update(done - bar.n)


def _work(settings: Settings, report: Callable[[int], None]) -> tuple[Tally, Facts]:
    """A whole run in this process."""
    zoo = Zoo.load(settings.zoo)
    zoo.verify_files()
    sets = [(split, TraceSet.load(zoo.folder / f"traces/{split}.parquet", zoo.target.fingerprint)) for split in SPLITS]
    precision: dict[str, Any] = {} if settings.dtype == "float32" else {"dtype": settings.dtype}
    models = open_models(zoo, settings.target, settings.device, settings.threads, **precision)
    margin, traced = None if settings.guard else 0.0, settings.dtype == "float32"
    facts = {
        "zoo": zoo.name,
        "target": zoo.target.fingerprint,
        "dtype": str(models.target.dtype).removeprefix("torch."),
        "attention": _attention(models.target),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    return run(models, sets, settings.tokens, settings.seed, margin, traced, report), facts


def _attention(target: TargetModel) -> str:
    return str(target.model.config._attn_implementation) if isinstance(target, TransformersModel) else target.engine


def _shared(settings: Settings, bar: Any) -> tuple[Tally, Facts]:
    """A run in several processes, each with its own seed and share."""
    context = multiprocessing.get_context("spawn")
    inbox: Any = context.Queue()
    share = -(-settings.tokens // settings.workers)
    workers = [
        context.Process(
            target=_child,
            args=(replace(settings, tokens=share, seed=settings.seed + index * SEED_STEP, workers=1), index, inbox),
            daemon=True,
        )
        for index in range(settings.workers)
    ]
    try:
        for worker in workers:
            worker.start()
        return _collected(workers, inbox, bar)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _collected(workers: list[Any], inbox: Any, bar: Any) -> tuple[Tally, Facts]:
    done, total, facts = [0] * len(workers), Tally(), Facts()
    running = set(range(len(workers)))
    while running:
        try:
            index, kind, content = inbox.get(timeout=POLL_S)
        except queue.Empty:
            _refuse_dead([workers[index] for index in running])
            continue
        if kind == "tokens":
            done[index] = content
            _advance(bar, sum(done))
        elif kind == "done":
            running.discard(index)
            tally, facts = content
            total.add(tally)
        else:
            raise UserError(content) if kind == "refused" else RuntimeError(f"worker {index} failed:\n{content}")
    return total, facts


def _refuse_dead(workers: list[BaseProcess]) -> None:
    for worker in workers:
        if worker.exitcode not in (None, 0):
            raise RuntimeError(f"a worker ended with status {worker.exitcode} (killed for memory?): use --workers 1")


def _child(settings: Settings, index: int, inbox: Any) -> None:
    try:
        inbox.put((index, "done", _work(settings, lambda done: inbox.put((index, "tokens", done)))))
    except UserError as error:
        inbox.put((index, "refused", str(error)))
    except Exception:
        inbox.put((index, "failed", traceback.format_exc()))
