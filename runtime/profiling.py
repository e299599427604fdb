"""Measuring a device: the very code that decodes, with the real models, in a minute or two.

forward   ``verify`` by width at the reference context: forward, argmax, margin
decode    the same at width 1 by context
prefill   forward of a whole prompt, logits of the last token only
drafts    ``ModelDrafter.propose`` by width; width 1 is a fifth of five guesses
load      the real loader thread, from file to usable; the file may lie in the page cache of the system
kv        copies out of and into the target's cache, block by block; files of blocks written and read
slowdown  decoding and loading at once, both compared with themselves alone
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from runtime.bundle import library_versions
from runtime.core import BLOCK_TOKENS, Request
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.greedy import verify
from runtime.decoding.live import LiveDecoder
from runtime.engine.base import TargetModel
from runtime.engine.draft_sequence import Draft
from runtime.engine.drafts import draft_loader
from runtime.engine.kv_state import KVState
from runtime.engine.loaded_draft import load_with_one_thread
from runtime.errors import UserError
from runtime.kv_folder import KVFolder
from runtime.live import LiveModels
from runtime.loading import FileWork
from runtime.memory.base import Job, Loaded, ReadKV, WriteKV
from runtime.memory.kv_tree import KVTree, Node
from runtime.memory.loader import ThreadLoader
from runtime.profile import Curve, DraftCost, Profile
from runtime.timing import WARM_UP, Timed, curve, median_of, timed

REFERENCE_CONTEXT = 200
WIDTHS = (1, 2, 3, 5, 9)
CONTEXTS = (64, 512, 1024)
PREFILLS = (2, 8, 32, 128, 512, 1024)
KV_TOKENS = (32, 128, 512)
NARROW, WIDE = (2, 4, 8), (32, 128, 512)
"""Widths of a draft's forward: behind the reference context, and from nothing."""

DRAFT_CELLS = 1024
"""Tokens of KV that a draft's engine is asked to have room for."""

GUESSES = 5
ROUNDS, SLOW_ROUNDS = 9, 3
LOADS = 4
SWEEPS = 3
"""Everything is measured this often, and the median taken."""
MOST_SLOWDOWN = 10.0
EXTRA_LIBRARIES = {"llamacpp": ("llama-cpp-python",)}
"""Distributions, by engine, whose versions belong to a measurement as well."""


class Slowdown(NamedTuple):
    """How much decoding and loading hinder each other, both at least 1."""

    decode: float
    load: float


def measure_profile(models: LiveModels, threads: int, progress: bool = True) -> Profile:
    """Measure this device with a zoo's models.

    Args:
        models: The target in memory, and the zoo whose drafts are measured.
        threads: Processor threads in use, for the record.
        progress: Whether to show a progress bar.

    Raises:
        UserError: If a draft cannot be loaded.
    """
    from runtime.device import device_name  # it imports this module

    with tqdm(total=SWEEPS * (6 + len(models.zoo.drafts)), desc="profile", disable=None if progress else True) as bar:

        def step(what: str) -> None:
            bar.set_postfix_str(what)
            bar.update()

        sweeps = [_sweep(models, threads, device_name(), step) for _ in range(SWEEPS)]
    return middle(sweeps)


def _sweep(models: LiveModels, threads: int, device: str, step: Callable[[str], None]) -> Profile:
    """Measure everything once."""
    zoo, target = models.zoo, models.target
    bench = Bench(models)
    try:
        forward, decode = bench.forward()
        step("verify")
        prefill = bench.prefill()
        step("prefill")
        store, restore = bench.kv()
        load, save = bench.kv_disk()
        step("KV")
        overhead_s = bench.round_overhead_s()
        step("round")
        drafts = {}
        for index, draft in enumerate(zoo.drafts):
            drafts[draft.name] = bench.draft(index)
            step(draft.name)
        slowdown = bench.slowdown({name: cost.load_s for name, cost in drafts.items()})
        step("contention")
    finally:
        bench.close()
        step("done")
    return Profile(
        device=device,
        engine=target.engine,
        dtype=target.dtype_name,
        threads=threads,
        target=zoo.target.fingerprint,
        reference_context=bench.context,
        forward=curve(forward),
        decode=curve(decode),
        prefill=curve(prefill),
        drafts=drafts,
        kv_store=curve(store),
        kv_restore=curve(restore),
        kv_load=curve(load) if load else None,
        kv_save=curve(save) if save else None,
        kv_bytes_per_token=target.kv_bytes_per_token,
        round_overhead_s=overhead_s,
        decode_slowdown=slowdown.decode,
        load_slowdown=slowdown.load,
        versions=library_versions("torch", "transformers", *EXTRA_LIBRARIES.get(target.engine, ())),
    )


def middle(sweeps: Sequence[Profile]) -> Profile:
    """The median of several measurements of one device, number by number.

    Drafts of the same shape are measured minutes apart in one sweep; a slow minute must not become a slow draft.
    """

    def number(values: Iterable[float]) -> float:
        return float(np.median(list(values)))

    def line(curves: Sequence[Curve]) -> Curve:
        seconds, spread = (np.median([getattr(c, name) for c in curves], axis=0) for name in ("seconds", "spread"))
        return Curve(curves[0].x, tuple(seconds.tolist()), tuple(spread.tolist()))

    first = sweeps[0]
    changes: dict[str, Any] = {}
    curves = ("forward", "decode", "prefill", "kv_store", "kv_restore", "kv_load", "kv_save")
    numbers = ("round_overhead_s", "decode_slowdown", "load_slowdown")
    for name in curves:
        if getattr(first, name) is not None:
            changes[name] = line([getattr(sweep, name) for sweep in sweeps])
    for name in numbers:
        changes[name] = number(getattr(sweep, name) for sweep in sweeps)
    drafts = {
        name: replace(
            cost,
            forward=line([sweep.drafts[name].forward for sweep in sweeps]),
            load_s=number(sweep.drafts[name].load_s for sweep in sweeps),
        )
        for name, cost in first.drafts.items()
    }
    return replace(
        first,
        drafts=drafts,
        **changes,
    )


def _through(loader: ThreadLoader, job: Job) -> None:
    """Do a job as a session does: by the loader's thread, waiting for it."""
    loader.start(job)
    loader.wait(job)
    loader.poll()


class Bench:
    """What is measured, one method a cost. The target's sequence is used up.

    Args:
        models: Target and zoo.
    """

    def __init__(self, models: LiveModels) -> None:
        self.zoo = models.zoo
        self.target: TargetModel = models.target
        self.limit = self.target.context_limit
        self.context = min(REFERENCE_CONTEXT, self.limit // 2)
        rng = random.Random(0)
        self.tokens = [rng.randrange(self.target.vocab_size) for _ in range(min(self.limit, CONTEXTS[-1] + 64))]
        load = draft_loader(
            self.target.engine, self.target.dtype_name, torch.get_num_threads(), min(self.limit, DRAFT_CELLS)
        )
        work = FileWork.of_zoo(self.zoo, str(self.target.device), target_folder=models.folder, load=load)
        self.loader = ThreadLoader(work, prepare=load_with_one_thread)
        self._warm_loader = False

    def close(self) -> None:
        """End the loader's thread and forget the sequence."""
        self.loader.close()
        self.target.reset()

    def forward(self) -> tuple[dict[int, Timed], dict[int, Timed]]:
        """Verifying by width behind the reference context, and a plain step by context."""
        contexts = [c for c in CONTEXTS if c + WIDTHS[-1] < self.limit and c != self.context] or [self.limit // 4]
        deepest = max(*contexts, self.context)
        self._prefilled(deepest)
        state = self.target.export_kv(0, deepest)
        at = {f"width {width}": (width, self.context) for width in WIDTHS}
        at |= {f"context {context}": (1, context) for context in contexts}
        points = timed(
            {name: partial(self._verify, *place) for name, place in at.items()},
            ROUNDS,
            self.target.synchronize,
            prepare=lambda name: self.target.import_kv([state], at[name][1]),
            device=self.target.device,
        )
        forward = {width: points[f"width {width}"] for width in WIDTHS}
        return forward, {self.context: forward[1]} | {c: points[f"context {c}"] for c in contexts}

    def prefill(self) -> dict[int, Timed]:
        """Prefilling by prompt length."""
        sizes = self._sizes(PREFILLS)
        return self._timed({size: partial(self._prefilled, size) for size in sizes}, SLOW_ROUNDS)

    def kv(self) -> tuple[dict[int, Timed], dict[int, Timed]]:
        """Copying KV out and back in, by tokens."""
        sizes = self._sizes(KV_TOKENS)
        self._prefilled(max(sizes))
        states = self._export(max(sizes))
        store = self._timed({size: partial(self._export, size) for size in sizes})
        return store, self._timed({size: partial(self.target.import_kv, states, size) for size in sizes})

    def kv_disk(self) -> tuple[dict[int, Timed], dict[int, Timed]]:
        """Reading stored KV from disk, and writing it, by tokens; a file just written may lie in the page cache."""
        sizes = [size for size in self._sizes(KV_TOKENS) if size >= BLOCK_TOKENS]
        if not sizes:  # a context of less than a block
            return {}, {}
        self._prefilled(max(sizes))
        nodes = self._blocks(max(sizes))
        with TemporaryDirectory(prefix="specpilot-") as folder:
            disk = KVFolder(Path(folder), self.target.kv_name, self.target.device)
            loader = ThreadLoader(FileWork((), disk=disk), prepare=load_with_one_thread)
            parts = {size: tuple(nodes[: size // BLOCK_TOKENS]) for size in sizes}
            save = self._timed({size: partial(_through, loader, WriteKV(part)) for size, part in parts.items()})
            load = self._timed({size: partial(_through, loader, ReadKV(part)) for size, part in parts.items()})
            loader.close()
            return load, save

    def round_overhead_s(self) -> float:
        """A plain round of the live decoder, less the verifying itself."""
        decoder = LiveDecoder(self.target, self.zoo.specs(self.limit))
        rounds = min(2 * ROUNDS, self.limit - self.context - WARM_UP - 2)
        decoder.begin(Request("overhead", tuple(self.tokens[: self.context]), rounds + WARM_UP + 2), 0, ())
        points = timed(
            {
                "round": partial(decoder.round, None, None, 0, 0.0),
                "verify": lambda: self._verify(1, self.target.length),
            },
            rounds,
            self.target.synchronize,
            device=self.target.device,
        )
        return max(0.0, points["round"].seconds - points["verify"].seconds)

    def draft(self, index: int) -> DraftCost:
        """Guessing, catching up and loading of one draft."""
        draft = self.zoo.drafts[index]
        if not draft.file:
            return DraftCost(curve(self._lookup()), 0.0, draft.bytes, draft.kv_bytes_per_token)
        if not self._warm_loader:
            self._load(index)
            self._warm_loader = True
        loads = [self._load(index) for _ in range(SLOW_ROUNDS)]
        payload = loads[-1].payload
        load_s = median_of([load.seconds for load in loads]).seconds
        return DraftCost(curve(self._guesses(payload)), load_s, payload.weight_bytes, draft.kv_bytes_per_token)

    def slowdown(self, load_s: dict[str, float]) -> Slowdown:
        """Loads of the slowest draft while plain steps go on.

        With k steps of f seconds each in a wall time T, of which the load ran L: k·f = L / slowdown + (T - L).
        """
        if not any(load_s.values()):
            return Slowdown(1.0, 1.0)
        name = max(load_s, key=load_s.__getitem__)
        index = self.zoo.draft_names.index(name)
        self._prefilled(self.context)
        alone_s = self._timed({1: partial(self._verify, 1, self.context)})[1].seconds
        work_s = wall_s = loading_s = 0.0
        loads = []
        for _ in range(LOADS):
            self.target.synchronize()
            begun_s = time.perf_counter()
            self.loader.start(index)
            finished: list[Loaded] = []
            while not finished:
                self._verify(1, self.context)
                self.target.synchronize()
                work_s += alone_s
                finished = self.loader.poll()
            wall_s += time.perf_counter() - begun_s
            loading_s += finished[0].seconds
            loads.append(finished[0].seconds)
        beside_s = work_s - wall_s + loading_s
        decode = loading_s / beside_s if beside_s > loading_s / MOST_SLOWDOWN else MOST_SLOWDOWN
        load = median_of(loads).seconds / load_s[name]
        return Slowdown(max(1.0, decode), min(max(1.0, load), MOST_SLOWDOWN))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _timed(self, pieces: Mapping[int, Callable[[], object]], rounds: int = ROUNDS) -> dict[int, Timed]:
        return timed(pieces, rounds, self.target.synchronize, device=self.target.device)

    def _sizes(self, wanted: tuple[int, ...]) -> list[int]:
        """The sizes that the target can read; a curve needs two."""
        return [size for size in wanted if size < self.limit] or [self.limit // 4, self.limit // 2]

    def _prefilled(self, tokens: int) -> None:
        self.target.reset()
        self.target.forward(self.tokens[:tokens], "last")

    def _export(self, tokens: int) -> list[KVState]:
        """Copies of the KV of the first tokens, block by block, as the KV store takes them."""
        return [self.target.export_kv(at, min(at + BLOCK_TOKENS, tokens)) for at in range(0, tokens, BLOCK_TOKENS)]

    def _blocks(self, tokens: int) -> list[Node]:
        """The same as blocks of a KV tree."""
        tree, path = KVTree(), []
        node = tree.root
        for index, state in enumerate(self._export(tokens // BLOCK_TOKENS * BLOCK_TOKENS)):
            at = index * BLOCK_TOKENS
            node = tree.add(node, tuple(self.tokens[at : at + BLOCK_TOKENS]))
            node.payload = state
            path.append(node)
        return path

    def _verify(self, width: int, context: int) -> None:
        verify(self.target, self.tokens[0], self.tokens[1:width], (), 0.0)
        self.target.crop(context)

    def _load(self, index: int) -> Loaded:
        self.loader.start(index)
        self.loader.wait(index)
        (loaded,) = self.loader.poll()
        if loaded.error is not None:
            raise UserError(loaded.error)
        return loaded

    def _guesses(self, payload: Draft) -> dict[int, Timed]:
        """A draft's forwards by width."""
        drafter = ModelDrafter(payload, self.target.embed, self.target.vocab_size)

        def guess(behind: int, width: int, guesses: int) -> None:
            drafter.settle(behind)
            drafter.propose(self.tokens[: behind + width], behind + width, guesses, 0.0, ())

        guess(0, self.context, 1)
        pieces: dict[int, Callable[[], object]] = {1: partial(guess, self.context, 1, GUESSES)}
        pieces |= {width: partial(guess, self.context, width, 1) for width in NARROW}
        points = self._timed(pieces)
        points[1] = Timed(points[1].seconds / GUESSES, points[1].spread / GUESSES)
        wide = {width: partial(guess, 0, width, 1) for width in WIDE if width < self.limit}
        return points | self._timed(wide, SLOW_ROUNDS)

    def _lookup(self) -> dict[int, Timed]:
        """Looking up, and taking in what was committed."""
        lookup, text = LookupDrafter(), self.tokens[: self.context // 2] * 2
        lookup.sync(text)
        return self._timed({1: partial(lookup.propose, text, 1, 4, 0.0, ())})
