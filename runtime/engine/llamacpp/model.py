"""The engine that runs a GGUF file with llama.cpp, on CPU.

    text            tokens 0 to length, in sequence 0 of a llama.cpp context
    forward         ``llama_decode``; logits only of the rows that were asked for
    crop            ``llama_memory_seq_rm``
    KV out and in   a range is given to a second sequence, and that sequence's state is written or read. The bytes hold
                    positions, so ranges that were written apart lie one behind another again when they are read

llama.cpp computes with 8-bit activations and keeps keys in fp16 and values in bf16, so its text is not that of the same
weights in another engine. See ``docs/engines.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from runtime.core import BLOCK_TOKENS
from runtime.engine.base import Logits
from runtime.engine.kv_state import KVState, total_length
from runtime.engine.llamacpp.context import BATCH_TOKENS, OUTPUT_TOKENS, ContextOptions, NativeContext
from runtime.engine.llamacpp.folder import ConvertedFolder
from runtime.engine.llamacpp.library import DISTRIBUTION, library_version
from runtime.engine.suitability import ADVICE
from runtime.engine.widths import change_by_width
from runtime.errors import UserError

CONTEXT_TOKENS = 4096
"""Longest sequence if nobody says otherwise: llama.cpp allocates the KV of all of them when it starts."""
EXACT_MARGIN, WIDE_MARGIN = 1e-3, 1.2
"""Margin of the guard where wide forwards give the bits of narrow ones, and where they do not: twice the largest change
of the gap between two of a position's ten best tokens, 0.56 on an earlier form of the engine, with other attention."""
EXACT_CHANGE = 1e-4
"""Largest change of a logit by width that counts as the same bits but for the head's sums."""
ROLL_BACK_TOLERANCE = 0.02
"""Part of the spread of the logits by which they may differ behind a roll-back."""


class LlamaCppModel:
    """Implements ``TargetModel``.

    Args:
        native: The context; it is taken over.
        folder: The folder that the same file was converted to.
        context_limit: Longest sequence, in tokens; the context has room for a block more.

    Raises:
        UserError: If the model's memory cannot be rolled back, or file and folder are of different models.
    """

    engine = "llamacpp"

    def __init__(self, native: NativeContext, folder: ConvertedFolder, context_limit: int) -> None:
        if native.cannot_roll_back:
            raise UserError(f"this GGUF model cannot be rolled back: {native.cannot_roll_back}; {ADVICE}")
        if native.vocab_size != folder.vocab_size:
            raise UserError(
                f"the GGUF file has {native.vocab_size} tokens, {folder.folder} has {folder.vocab_size}: they are of "
                "different models; remove the folder, it will be made again"
            )
        self._native, self._folder, self._context_limit = native, folder, context_limit
        self._length = 0
        self.fingerprint = folder.fingerprint()
        self._kv_bytes_per_token = self._measure_kv()
        self.guard_margin = self._measure_margin()

    @classmethod
    def load(cls, path: Path, folder: Path, threads: int, context_tokens: int = CONTEXT_TOKENS) -> LlamaCppModel:
        """Open a GGUF file.

        Args:
            path: The file.
            folder: The folder that it was converted to.
            threads: CPU threads of every forward.
            context_tokens: Longest sequence, at most what the model was trained for.

        Raises:
            UserError: If llama-cpp-python is missing, or the file cannot be run.
        """
        if context_tokens < 2:
            raise UserError(f"expected a context of at least 2 tokens, got {context_tokens}: choose a longer one")
        converted = ConvertedFolder(folder)
        limit = min(context_tokens, converted.context_limit)
        return cls(NativeContext(path, ContextOptions(limit + BLOCK_TOKENS, threads)), converted, limit)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def length(self) -> int:
        return self._length

    @property
    def vocab_size(self) -> int:
        return self._native.vocab_size

    @property
    def context_limit(self) -> int:
        return self._context_limit

    @property
    def kv_bytes_per_token(self) -> int:
        """Of a block as it is stored, by token; llama.cpp's few bytes around a block included."""
        return self._kv_bytes_per_token

    @property
    def weight_bytes(self) -> int:
        return self._native.weight_bytes

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16

    @property
    def kv_name(self) -> str:
        return f"{self.fingerprint} {self._native.description}, values bf16, {DISTRIBUTION} {library_version()}"

    def forward(self, tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        end = self._length + len(tokens)
        self._refuse_unless_fitting(tokens, end)
        try:
            rows = self._decode(tokens, logits)
        except BaseException:
            self._native.remove(self._length)
            raise
        self._length = end
        return rows

    def crop(self, length: int) -> None:
        if length < 0:
            raise ValueError(f"expected a length of at least 0, got {length}")
        if length < self._length:
            self._native.remove(length)
            self._length = length

    def export_kv(self, start: int, end: int) -> KVState:
        if not 0 <= start < end <= self._length:
            raise ValueError(f"expected a range within 0 to {self._length} (tokens in the cache), got {start} to {end}")
        return KVState.opaque(self._native.copy_out(start, end), end - start)

    def import_kv(self, states: Sequence[KVState], length: int) -> None:
        if not 0 < length <= total_length(states):
            raise ValueError(f"expected a length of 1 to {total_length(states)} (tokens stored), got {length}")
        self.reset()
        try:
            at = 0
            for state in states:
                self._native.copy_in(state.buffer, min(at + state.length, length))
                at += state.length
                if at >= length:
                    break
        except BaseException:
            self._native.clear()
            raise
        self._length = length

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        return self._folder.embed(tokens)

    def reset(self) -> None:
        self._native.clear()
        self._length = 0

    def synchronize(self) -> None:
        self._native.synchronize()

    # -- parts ---------------------------------------------------------------------------------------------------

    def _decode(self, tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        """In as few parts as the context takes; only the last part's logits where no others are wanted."""
        every = logits == "all"
        step = OUTPUT_TOKENS if every else BATCH_TOKENS
        parts = []
        for at in range(0, len(tokens), step):
            part = tokens[at : at + step]
            outputs = len(part) if every else int(at + step >= len(tokens))
            parts.append(self._native.decode(part, self._length + at, outputs))
        return parts[-1] if len(parts) == 1 or not every else torch.cat(parts)

    def _refuse_unless_fitting(self, tokens: Sequence[int], end: int) -> None:
        if not tokens:
            raise ValueError("expected at least one token to forward, got none")
        if end > self._context_limit:
            raise ValueError(
                f"expected a sequence of at most {self._context_limit} tokens (the engine's context), got {end}: "
                "shorten the prompt or the answer"
            )
        if not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
            raise IndexError(f"expected token ids from 0 to {self.vocab_size - 1}, got {min(tokens)} to {max(tokens)}")

    def _measure_kv(self) -> int:
        """Forward two tokens, roll back, forward another: shows that this works, and what a token weighs."""
        first, other, guess = 0, 1, 2
        self.forward([first, guess], "last")
        one, two = self.export_kv(0, 1).bytes, self.export_kv(0, 2).bytes
        self.crop(1)
        again = self.forward([other], "last")
        self.reset()
        never = self.forward([first, other], "last")
        self.reset()
        difference, spread = (again - never).abs().max(), never.max() - never.min()
        if not bool(difference <= ROLL_BACK_TOLERANCE * spread):
            raise UserError(f"this GGUF model cannot be rolled back: a token taken back changes what follows; {ADVICE}")
        around = one - (two - one)
        return two - one + -(-around // BLOCK_TOKENS)

    def _measure_margin(self) -> float:
        """Compare a wide forward with narrow ones, and what follows both: formats of weights have kernels of their own.

        Formats without a kernel for several rows (Q4_1, say) are computed row by row: the bits are the same.
        """
        return EXACT_MARGIN if change_by_width(self) <= EXACT_CHANGE else WIDE_MARGIN
