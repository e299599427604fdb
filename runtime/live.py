"""The real thing, assembled: a target, a zoo's drafts, the loader thread, memory and a session over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from runtime.control.base import Controller
from runtime.control.topic import TopicPredictor
from runtime.core import MemoryConfig
from runtime.decoding.clock import WallClock
from runtime.decoding.live import LiveDecoder
from runtime.engine.base import TargetModel
from runtime.engine.drafts import draft_loader
from runtime.engine.loaded_draft import load_with_one_thread
from runtime.engine.malloc import release_free_memory, returned_when_freed
from runtime.engine.opening import AUTO, TargetChoice, open_target
from runtime.engine.tokenizers import load_tokenizer, refuse_unless_model_has_rows, refuse_unless_same_tokenizer
from runtime.errors import UserError
from runtime.kv_folder import KVFolder
from runtime.loading import FileWork
from runtime.memory.loader import ThreadLoader
from runtime.memory.manager import MemoryManager
from runtime.memory.retries import Retries
from runtime.profile import CostModel
from runtime.session import DecodeSession, SessionConfig
from runtime.threads import usable_threads
from runtime.zoo import Zoo


@dataclass(frozen=True)
class LiveModels:
    """A target in memory with its tokenizer, the folder it came from, and the zoo that belongs to it."""

    zoo: Zoo
    folder: Path
    target: TargetModel
    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """Prompt token ids of one user message, generation prompt included; plain text without a chat template."""
        if self.tokenizer.chat_template:
            encoded = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
            )
            return list(encoded["input_ids"])
        return list(self.tokenizer(text)["input_ids"])

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def text(self, tokens: Sequence[int]) -> str:
        """``decode`` of any sequence, for stop strings and streaming."""
        return self.decode(list(tokens))


@dataclass(frozen=True)
class Served:
    """What answers requests, owned by one thread: a target in memory, a session over it, and who decides."""

    models: LiveModels
    session: DecodeSession
    controller: Controller


def open_models(
    zoo: Zoo,
    source: str | None = None,
    device: str = "cpu",
    threads: int = 0,
    dtype: str = "float32",
    tokenizer: str | None = None,
    engine: str = AUTO,
) -> LiveModels:
    """Fetch (once) and load the target of a zoo.

    The zoo's drafts need no tokenizer check of their own: they read through the target's embedding table and are bound
    to its fingerprint, which is compared here.

    Args:
        zoo: The zoo.
        source: Another place to take the target from; None = the zoo's own sources, in order.
        device: Torch device.
        threads: CPU threads; 0 = as ``usable_threads``.
        dtype: What the target runs in, a name of ``DTYPES``; the drafts stay in fp32.
        tokenizer: Folder of another tokenizer (say, one with another chat template); None = the target's own.
        engine: ``transformers``, ``llamacpp``, or ``auto``: llama.cpp if ``source`` names a GGUF file and
            llama-cpp-python is installed, else transformers. See ``runtime.engine.opening.choose_engine``.

    Raises:
        UserError: If the target cannot be had or is not the one the zoo was made for, the device or dtype cannot be
            used, or a tokenizer does not mean the target's token ids.
    """
    choice = TargetChoice(source, device, dtype, threads or usable_threads(), engine)
    _refuse_unless_usable(device, threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # a bar per load says nothing here
    torch.set_num_threads(choice.threads)
    with returned_when_freed():  # what is made on the way to the weights leaves no holes between them
        folder, target = open_target(choice, zoo.target.sources)
    release_free_memory()
    got = target.fingerprint
    if got != zoo.target.fingerprint:
        raise UserError(
            f"zoo '{zoo.name}' belongs to a target with fingerprint {zoo.target.fingerprint[:12]}…, {folder} has "
            f"{got[:12]}…: use the target the drafts were distilled from, or distil drafts for this one"
        )
    return LiveModels(zoo, folder, target, _open_tokenizer(folder, target.vocab_size, tokenizer))


def _open_tokenizer(folder: Path, rows: int, other: str | None) -> Any:
    own = load_tokenizer(folder)
    refuse_unless_model_has_rows(own, rows)
    if other is None:
        return own
    chosen = load_tokenizer(other)
    refuse_unless_same_tokenizer(chosen, own)
    return chosen


def _refuse_unless_usable(device: str, threads: int) -> None:
    if threads < 0:
        raise UserError(f"expected a number of threads, or 0 for all cores, got {threads}: change --threads")
    try:
        torch.empty(1, device=device).tolist()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"device '{device}' cannot be used here ({str(error).splitlines()[0]}): expected cpu, or cuda on a machine "
            "that has it"
        ) from None


@contextmanager
def open_session(
    models: LiveModels,
    memory: MemoryConfig,
    costs: CostModel,
    kv_reserve_tokens: int,
    decision_interval: int,
    margin: float | None = None,
    kv_folder: Path | None = None,
) -> Iterator[DecodeSession]:
    """A fresh session with empty memory over the real models; its loader ends with the context.

    Args:
        models: Target and zoo.
        memory: The byte budget; what a token's KV takes is asked of the target.
        costs: The device's profile.
        kv_reserve_tokens: Context reserved in every resident draft's own KV.
        decision_interval: Rounds between two decisions about prefetching.
        margin: Logit margin of the guard; None = by the target's dtype, 0 = no guard (for measurements).
        kv_folder: Where copies of stored KV lie, up to ``memory.disk_bytes``; what earlier runs left there is used.
            None = nowhere.
    """
    zoo, device = models.zoo, str(models.target.device)
    specs = zoo.specs(kv_reserve_tokens)
    disk = KVFolder(kv_folder, models.target.kv_name, device) if kv_folder else None
    memory = replace(
        memory,
        kv_bytes_per_token=models.target.kv_bytes_per_token,
        disk_bytes=memory.disk_bytes if disk else 0,
    )
    expected_s = [costs.load_s(i) for i in range(len(specs))]
    load = draft_loader(models.target.engine, models.target.dtype_name, torch.get_num_threads(), kv_reserve_tokens)
    work = FileWork.of_zoo(zoo, device, disk, models.folder, load)
    loader = ThreadLoader(work, expected_s, load_with_one_thread)
    topic = TopicPredictor.load(zoo.folder / zoo.topic, zoo.draft_names) if zoo.topic else None
    decoder = LiveDecoder(models.target, specs, topic, margin, models.text)
    manager = MemoryManager(memory, specs, loader, costs, disk)
    manager.retries = Retries(work.hopeful)
    clock = WallClock(models.target.synchronize)
    manager.prefixes.adopt(clock.now_s())
    try:
        yield DecodeSession(decoder, manager, clock, costs, topic, SessionConfig(decision_interval))
        manager.prefixes.flush()
    finally:
        loader.close()
