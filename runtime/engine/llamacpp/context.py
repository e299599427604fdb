"""One llama.cpp context in our words: decode, remove, copy out and in. Everything by its public calls.

    sequence 0   the text:     [0 ............................ length)
    sequence 1   scratch:          [start ..... end)                     only while KV is copied out or in

Both sequences share one buffer of cells (``kv_unified``), so what is in both takes no memory twice, and giving tokens
from one to the other copies nothing.

What ``llama_decode`` does not like it answers by ending the process, so all arguments are checked before.

**A row must not depend on how many rows are computed with it**, else keys and values behind guesses differ from plain
decoding's, and 8-bit activations make logits of the smallest difference: up to 1, measured on an earlier form of the
engine. llama.cpp has several attention kernels and chooses by width and context. With flash attention, keys in fp16 and
values in bf16 there is one kernel for all widths; values in fp16 as well would bring in two more. That costs time: see
``docs/engines.md``.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.engine.llamacpp.library import forget_complaints, last_complaint, library
from runtime.engine.malloc import new_lasting
from runtime.errors import UserError

TEXT, SCRATCH = 0, 1
BATCH_TOKENS = 512
"""Most tokens of one decode; a longer prompt is decoded in parts. llama.cpp's own default."""
OUTPUT_TOKENS = 32
"""Most tokens of one decode whose logits are wanted; bounds the buffers for logits."""
FP16, BF16 = 1, 30
"""Numbers of ``ggml_type``; not every version of llama-cpp-python names both."""
CELL_STEP = 256
"""llama.cpp rounds the number of cells up to this."""


@dataclass(frozen=True)
class ContextOptions:
    """How a context is made.

    Attributes:
        cells: Tokens it can hold.
        threads: CPU threads of every forward.
        batch: Most tokens of one decode.
        outputs: Most tokens of one decode whose logits are wanted.
        embedded: Width of what it is fed instead of token ids; 0 = token ids.
        any_width: Whether a row's result must not depend on the width of the forward; drafts need not care.
    """

    cells: int
    threads: int
    batch: int = BATCH_TOKENS
    outputs: int = OUTPUT_TOKENS
    embedded: int = 0
    any_width: bool = True


class NativeContext:
    """A model and a context over it; freed when this object is.

    Args:
        path: The GGUF file; mapped, not copied, where llama.cpp need not lay it out anew.
        options: How the context is made.

    Raises:
        UserError: If llama.cpp cannot read the file, or there is too little memory.
    """

    def __init__(self, path: Path, options: ContextOptions) -> None:
        self._lib = lib = library()
        forget_complaints()
        self._model = lib.llama_model_load_from_file(os.fsencode(path), _model_parameters(lib))
        if not self._model:
            raise UserError(
                f"{path}: llama.cpp cannot read this model ({last_complaint() or 'it says no more'}); check the file, "
                "or use --engine transformers"
            )
        self._context = lib.llama_init_from_model(self._model, _context_parameters(lib, options))
        if not self._context:
            lib.llama_model_free(self._model)
            raise UserError(
                f"{path}: llama.cpp cannot make a context of {options.cells} tokens ({last_complaint()}); choose a "
                "shorter one, or free some memory"
            )
        self._memory = lib.llama_get_memory(self._context)
        self._options, self._batch = options, _Batch(lib, options)
        self._vocab_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        self._free = weakref.finalize(self, _free, lib, self._model, self._context, self._batch.native)

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Tokens the model knows."""
        return self._vocab_size

    @property
    def trained_context(self) -> int:
        """Tokens the model was trained to read."""
        return int(self._lib.llama_model_n_ctx_train(self._model))

    @property
    def weight_bytes(self) -> int:
        """Size of all weights."""
        return int(self._lib.llama_model_size(self._model))

    @property
    def description(self) -> str:
        """Architecture, size and format of the weights, e.g. ``llama 135M Q4_1``."""
        buffer = ctypes.create_string_buffer(128)
        self._lib.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def cannot_roll_back(self) -> str:
        """Why tokens cannot be taken out of its memory one by one; empty if they can."""
        lib, model = self._lib, self._model
        if lib.llama_model_has_encoder(model):
            return "it is no decoder-only model"
        if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model):
            return "it keeps a recurrent state"
        if lib.llama_model_is_diffusion(model):
            return "it does not write from left to right"
        if lib.llama_model_n_swa(model) > 0:
            return "it has windowed attention, of which llama.cpp forgets what lies outside the window"
        return ""

    # -- decoding ------------------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], start: int, outputs: int) -> torch.Tensor:
        """Append tokens to the text.

        Args:
            tokens: At most ``options.batch``, each known to the model.
            start: Position of the first.
            outputs: Logits are wanted behind this many of the last tokens, 0 to ``options.outputs``.

        Returns:
            Float32 logits, shape (outputs, vocab).

        Raises:
            RuntimeError: If llama.cpp fails; some of the tokens may then be in its memory.
        """
        assert not self._options.embedded and 0 < len(tokens) <= self._options.batch
        self._batch.tokens[: len(tokens)] = tokens
        return self._decode(len(tokens), start, outputs)

    def decode_embedded(self, rows: torch.Tensor, start: int, outputs: int) -> torch.Tensor:
        """The same for a context that is fed embeddings, float32, shape (n, ``options.embedded``)."""
        assert rows.shape[1] == self._options.embedded and 0 < len(rows) <= self._options.batch
        self._batch.embeddings[: len(rows)] = rows
        return self._decode(len(rows), start, outputs)

    def _decode(self, count: int, start: int, outputs: int) -> torch.Tensor:
        assert 0 <= outputs <= min(self._options.outputs, count)
        forget_complaints()
        status = self._lib.llama_decode(self._context, self._batch.ready(count, start, outputs))
        if status != 0:
            raise RuntimeError(f"llama.cpp could not decode {count} tokens (status {status}; {last_complaint()})")
        rows = torch.empty((outputs, self._vocab_size), dtype=torch.float32)
        if outputs:  # the first access waits until everything is computed
            source = self._lib.llama_get_logits(self._context)
            ctypes.memmove(rows.data_ptr(), source, rows.numel() * rows.element_size())
        return rows

    def synchronize(self) -> None:
        """Return when everything is computed."""
        self._lib.llama_synchronize(self._context)

    # -- memory --------------------------------------------------------------------------------------------------

    def remove(self, start: int) -> None:
        """Forget the text from position ``start`` on."""
        self._lib.llama_memory_seq_rm(self._memory, TEXT, start, -1)

    def clear(self) -> None:
        """Forget everything; cells are used from the first one again."""
        self._lib.llama_memory_clear(self._memory, False)

    def copy_out(self, start: int, end: int) -> torch.Tensor:
        """The KV of positions ``start`` to ``end`` of the text as llama.cpp writes it, uint8, flat."""
        lib = self._lib
        lib.llama_memory_seq_cp(self._memory, TEXT, SCRATCH, start, end)
        try:
            size = lib.llama_state_seq_get_size(self._context, SCRATCH)
            blob = new_lasting((size,), torch.uint8)
            written = lib.llama_state_seq_get_data(self._context, _bytes_at(blob), size, SCRATCH)
        finally:
            self._forget_scratch()
        if written != size:
            raise RuntimeError(f"llama.cpp wrote {written} of {size} bytes of KV ({last_complaint()})")
        return blob

    def copy_in(self, blob: torch.Tensor, end: int) -> None:
        """Append to the text what ``copy_out`` gave, up to position ``end``.

        Raises:
            RuntimeError: If these bytes are no KV of this model, or there is no room.
        """
        lib = self._lib
        forget_complaints()
        size = blob.numel()
        try:
            read = lib.llama_state_seq_set_data(self._context, _bytes_at(blob), size, SCRATCH)
            if read != size:
                raise RuntimeError(f"llama.cpp read {read} of {size} bytes of stored KV ({last_complaint()})")
            lib.llama_memory_seq_cp(self._memory, SCRATCH, TEXT, 0, end)
        finally:
            self._forget_scratch()

    def _forget_scratch(self) -> None:
        self._lib.llama_memory_seq_rm(self._memory, SCRATCH, -1, -1)


class _Batch:
    """A batch that is filled again and again; its arrays lie in llama.cpp's memory.

    Attributes:
        tokens: Token ids, shape (batch,); none if embeddings are fed.
        embeddings: Float32, shape (batch, width); none if token ids are fed.
    """

    def __init__(self, lib: Any, options: ContextOptions) -> None:
        size, width = options.batch, options.embedded
        self.native = lib.llama_batch_init(size, width, 1)
        as_array = np.ctypeslib.as_array
        self.tokens = as_array(self.native.token, (size,)) if not width else np.empty(0, np.int32)
        self.embeddings = torch.from_numpy(as_array(self.native.embd, (size, width)) if width else np.empty((0, 0)))
        self._positions = as_array(self.native.pos, (size,))
        self._wanted = as_array(self.native.logits, (size,))
        self._from = np.arange(size, dtype=np.int32)
        for index in range(size):
            self.native.n_seq_id[index] = 1
            self.native.seq_id[index][0] = TEXT

    def ready(self, count: int, start: int, outputs: int) -> Any:
        """The batch for the ``count`` tokens it is filled with; logits are wanted of the last ``outputs``."""
        self.native.n_tokens = count
        np.add(self._from[:count], start, out=self._positions[:count])
        self._wanted[: count - outputs] = 0
        self._wanted[count - outputs : count] = 1
        return self.native


def _model_parameters(lib: Any) -> Any:
    parameters = lib.llama_model_default_params()
    parameters.n_gpu_layers = 0  # on the processor, as ``device`` says
    return parameters


def _context_parameters(lib: Any, options: ContextOptions) -> Any:
    parameters = lib.llama_context_default_params()
    parameters.n_ctx = -(-options.cells // CELL_STEP) * CELL_STEP
    parameters.n_batch = parameters.n_ubatch = options.batch
    parameters.n_outputs_max = options.outputs
    parameters.n_seq_max = 2
    parameters.kv_unified = True
    parameters.n_threads = parameters.n_threads_batch = options.threads
    parameters.type_k = FP16
    if options.any_width:
        parameters.flash_attn_type, parameters.type_v = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED, BF16
    else:
        parameters.flash_attn_type, parameters.type_v = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED, FP16
    parameters.no_perf = True
    return parameters


def _bytes_at(blob: torch.Tensor) -> Any:
    return (ctypes.c_uint8 * blob.numel()).from_address(blob.data_ptr())


def _free(lib: Any, model: Any, context: Any, batch: Any) -> None:
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
