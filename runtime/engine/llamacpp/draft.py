"""A draft that llama.cpp runs, in 8 bit: a quarter of a torch draft's memory, and the threads of the target's engine.

The GGUF file is made once, kept in the cache folder under the hash of the draft file, and mapped: loading it again is
little more than making a context.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import torch

from runtime.engine.draft_file import opened_draft
from runtime.engine.llamacpp.context import ContextOptions, NativeContext
from runtime.engine.llamacpp.draft_gguf import FORM_VERSION, can_convert, write_draft_gguf
from runtime.engine.sources import cache_folder
from runtime.errors import UserError
from runtime.files import sha256_file

LOGGER = logging.getLogger(__name__)

DRAFT_BATCH, DRAFT_OUTPUTS = 256, 64
"""Most tokens of one decode, and most whose logits are wanted: small, for buffers are allocated for as many."""


class NativeSequence:
    """Implements ``DraftSequence``.

    Args:
        context: Fed with embeddings; it is taken over.
    """

    def __init__(self, context: NativeContext) -> None:
        self._context, self._length = context, 0
        context.clear()

    def forward(self, embedded: torch.Tensor, keep: int) -> torch.Tensor:
        rows = embedded[0].float()  # (n, width)
        silent = len(rows) - keep
        parts = [(at, min(at + DRAFT_BATCH, silent), 0) for at in range(0, silent, DRAFT_BATCH)]
        parts += [(at, end := min(at + DRAFT_OUTPUTS, len(rows)), end - at)
                  for at in range(silent, len(rows), DRAFT_OUTPUTS)]  # fmt: skip
        logits = []
        for start, end, outputs in parts:
            logits.append(self._context.decode_embedded(rows[start:end], self._length, outputs))
            self._length += end - start
        return torch.cat(logits) if len(logits) > 1 else logits[0]

    def crop_to(self, length: int) -> None:
        if length < self._length:
            self._length = length
        self._context.remove(self._length)  # an interrupted forward leaves more than is counted


class NativeDraft:
    """Implements ``Draft``.

    Args:
        name: Its name in the zoo.
        vocab: Token id of every row of its head.
        path: Its GGUF file.
        options: Of its contexts.
    """

    def __init__(self, name: str, vocab: tuple[int, ...], path: Path, options: ContextOptions) -> None:
        self.name, self.vocab = name, vocab
        self._path, self._options = path, options
        self._spare: NativeContext | None = NativeContext(path, options)  # made where the draft is loaded
        self.weight_bytes = self._spare.weight_bytes
        if self._spare.vocab_size != len(vocab):
            raise UserError(f"{path}: has {self._spare.vocab_size} rows, expected {len(vocab)}: remove it")

    def sequence(self) -> NativeSequence:
        """A new, empty sequence; the second one opens the file again."""
        context, self._spare = self._spare or NativeContext(self._path, self._options), None
        return NativeSequence(context)


def load_native_draft(path: Path, sha256: str, threads: int, cells: int) -> NativeDraft | None:
    """A draft file, opened in llama.cpp. A kept conversion that cannot be used is made again, once.

    Args:
        path: The draft file.
        sha256: Hash (hex) that it must have; empty = any.
        threads: CPU threads of its forwards.
        cells: Tokens that its KV has room for.

    Returns:
        None if it is a recipe, or of a family that cannot be converted.

    Raises:
        UserError: If the file is missing, damaged or another one, or cannot be converted or run.
    """
    with opened_draft(path, sha256=sha256) as parts:
        header = parts.header
        if header.recipe is not None or not can_convert(header.config):
            return None
        kept = cache_folder() / "drafts" / f"{sha256 or sha256_file(path)}-{FORM_VERSION}.gguf"
        width = int(header.config["hidden_size"])
        options = ContextOptions(cells, threads, DRAFT_BATCH, DRAFT_OUTPUTS, width, any_width=False)
        native = partial(NativeDraft, header.name, tuple(parts.vocab.tolist()), kept, options)
        if kept.is_file():
            try:
                return native()
            except UserError as error:
                LOGGER.warning("a kept draft is of no use and is converted again: %s", error)
        write_draft_gguf(parts, kept)
        return native()
