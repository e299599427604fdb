"""The real thing, assembled: a target, a zoo's drafts, the loader thread, memory and a session over them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from runtime.control.topic import TopicPredictor
from runtime.core import MemoryConfig
from runtime.decoding.clock import WallClock
from runtime.decoding.live import LiveDecoder
from runtime.engine.loaded_draft import load_draft, load_with_one_thread
from runtime.engine.sources import resolve_first
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from runtime.memory.loader import ThreadLoader
from runtime.memory.manager import MemoryManager
from runtime.profile import CostModel
from runtime.session import DecodeSession, SessionConfig
from runtime.zoo import Zoo


@dataclass(frozen=True)
class LiveModels:
    """A target in memory with its tokenizer, and the zoo that belongs to it."""

    zoo: Zoo
    folder: Path
    target: TransformersModel
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


def open_models(zoo: Zoo, source: str | None = None, device: str = "cpu", threads: int = 0) -> LiveModels:
    """Fetch (once) and load the target of a zoo.

    Args:
        zoo: The zoo.
        source: Another place to take the target from; None = the zoo's own sources, in order.
        device: Torch device.
        threads: CPU threads; 0 = all cores.

    Raises:
        UserError: If the target cannot be had or is not the one the zoo was made for, or the device cannot be used.
    """
    _refuse_unless_usable(device, threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # a bar per load says nothing here
    torch.set_num_threads(threads or os.cpu_count() or 1)
    folder = resolve_first((source,) if source else zoo.target.sources)
    target = TransformersModel.load(folder, device)
    got = target.fingerprint
    if got != zoo.target.fingerprint:
        raise UserError(
            f"zoo '{zoo.name}' belongs to a target with fingerprint {zoo.target.fingerprint[:12]}…, {folder} has "
            f"{got[:12]}…: use the target the drafts were distilled from, or distil drafts for this one"
        )
    return LiveModels(zoo, folder, target, AutoTokenizer.from_pretrained(folder))


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
) -> Iterator[DecodeSession]:
    """A fresh session with empty memory over the real models; its loader ends with the context."""
    zoo, device = models.zoo, str(models.target.device)
    specs = zoo.specs(kv_reserve_tokens)
    loader = ThreadLoader(
        [zoo.draft_path(i) if draft.file else None for i, draft in enumerate(zoo.drafts)],
        partial(load_draft, device=device),
        [costs.load_s(i) for i in range(len(specs))],
        load_with_one_thread,
    )
    topic = TopicPredictor.load(zoo.folder / zoo.topic, zoo.draft_names) if zoo.topic else None
    decoder = LiveDecoder(models.target, specs, topic)
    manager = MemoryManager(memory, specs, loader, costs)
    try:
        yield DecodeSession(
            decoder, manager, WallClock(models.target.synchronize), costs, topic, SessionConfig(decision_interval)
        )
    finally:
        loader.close()
