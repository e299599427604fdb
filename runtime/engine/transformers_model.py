"""The engine that runs any Hugging Face causal language model whose layers are attention, on CPU or CUDA.

Windowed layers keep the KV of all tokens, and the mask does the windowing: a roll-back or a reused prefix is then exact
on both sides of the window's border. A window so saves no memory here: ``kv_bytes_per_token`` counts every layer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from runtime.engine.base import Logits
from runtime.engine.dtypes import compute_dtype
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.graphs.base import Runner
from runtime.engine.graphs.choice import choose_runner
from runtime.engine.graphs.eager import EagerRunner
from runtime.engine.graphs.token_step import TokenStep
from runtime.engine.graphs.trial import agree
from runtime.engine.int8 import quantise_linears
from runtime.engine.kv_state import KVState, total_length
from runtime.engine.native.install import back_to_floats, install, multiplies_integers
from runtime.engine.native.products import EXACT, INTEGERS, NEAREST, UNCOMPRESSED, Products
from runtime.engine.packing import pack_linears, weight_bytes
from runtime.engine.slabs import side_by_side
from runtime.engine.suitability import ADVICE, context_limit, refuse_unless_croppable, refuse_unless_decoder
from runtime.engine.widths import change_by_width
from runtime.errors import UserError

ROLL_BACK_TOLERANCE = {torch.float32: 1e-3}
"""Part of the spread of the logits by which they may differ behind a roll-back; rounding takes 3e-6 of it."""
LOW_PRECISION_TOLERANCE = 0.1
"""The same for other dtypes; rounding takes 0.03."""

LOGGER = logging.getLogger(__name__)

NO_KERNELS, KERNELS, INTEGER_KERNELS = "no kernels", "kernels 2", "kernels of integers 2"
"""How products are computed, in the name of stored KV. Kernels that round otherwise get the next number."""

_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)
_UNUSABLE = (AttributeError, IndexError, NotImplementedError, TypeError, ValueError)
"""What a model raises that does not work with a cache of ours."""


class TransformersModel:
    """Implements ``TargetModel``.

    Args:
        model: The model, on its device and in its dtype. It is taken over: on CPU in fp32 its layers are replaced by
            faster ones, see ``runtime.engine.native`` and ``runtime.engine.packing``.
        pack: Whether to replace any; for measurements.
        native: Whether to use compiled kernels where there is a compiler; for measurements.
        compress: Whether weights that lie on a grid of few bits are kept as those, which loses nothing.
        int8: Whether to keep the weights of linear layers in 8 bit; meant for a model in ``compute_dtype``.
        fingerprint: The target fingerprint where it is known; None = taken from the weights.
        graphs: Whether narrow forwards work on fixed buffers and, on CUDA, are replayed as CUDA graphs, see
            ``runtime.engine.graphs``; None = on CUDA. A model that cannot do so runs as it would without.

    Raises:
        UserError: If the model keeps state that cannot be rolled back.
    """

    engine = "transformers"
    guard_margin: float | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        pack: bool = True,
        int8: bool = False,
        fingerprint: str | None = None,
        native: bool = True,
        compress: bool = True,
        graphs: bool | None = None,
    ) -> None:
        refuse_unless_croppable(model)
        self.model: PreTrainedModel = model.eval()  # type: ignore[no-untyped-call]
        model.requires_grad_(False)
        self._dtype, self._device = model.dtype, model.device
        self._format = torch.int8 if int8 else model.dtype
        self.fingerprint = fingerprint or target_fingerprint(model)  # of the weights as they came
        products = _products(int8, compress)
        with side_by_side():
            replaced = install(model, products) if native and (pack or int8) else 0
        self._kernels = NO_KERNELS if not replaced else INTEGER_KERNELS if products is INTEGERS else KERNELS
        if int8:
            quantise_linears(model)
        elif pack:
            pack_linears(model)
        config = model.config.get_text_config(decoder=True)
        self._vocab_size = int(config.vocab_size)
        self._context_limit = context_limit(model.config)
        self._weight_bytes = weight_bytes(model)
        self._embedding = model.get_input_embeddings()
        self._runner = self._choose_runner(graphs)
        self._cache = self._runner.cache
        self._length = 0
        self._kv_bytes_per_token = self._measure_kv()
        if self._kernels == INTEGER_KERNELS and change_by_width(self) > 0.0:
            with side_by_side():
                back_to_floats(model)  # rounded rows would make of a rounding's difference a large one
            self._kernels = KERNELS

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TransformersModel:
        """Load a model from a local folder.

        Args:
            folder: Folder with config.json and safetensors.
            device: Torch device.
            dtype: Format of the weights; ``torch.int8`` for linear layers in 8 bit that compute as
                ``compute_dtype`` says.

        Raises:
            UserError: If the folder holds no readable model, or one that cannot be rolled back.
        """
        try:
            refuse_unless_decoder(AutoConfig.from_pretrained(folder, local_files_only=True), str(folder))
            fingerprint = _fingerprint_before(folder, dtype)
            model = _read(folder, compute_dtype(dtype, device))
        except _UNREADABLE as error:
            raise UserError(
                f"{folder}: expected a folder with a causal language model (config.json and safetensors), got: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}; check the path or fetch the "
                "model again with `specpilot pull`"
            ) from error
        model.to(torch.device(device))  # type: ignore[arg-type]
        return cls(model, int8=dtype == torch.int8, fingerprint=fingerprint)

    @property
    def length(self) -> int:
        return self._length

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def context_limit(self) -> int:
        return self._context_limit

    @property
    def kv_bytes_per_token(self) -> int:
        return self._kv_bytes_per_token

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def dtype_name(self) -> str:
        return str(self._format).removeprefix("torch.")

    @property
    def kv_name(self) -> str:
        """What a stored KV belongs to: these weights in this format, computed by this engine on such a device."""
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        return f"{self.fingerprint} {self._format} {self._dtype} {self._device.type}, {self._kernels}, {versions}"

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], logits: Logits) -> torch.Tensor:
        if not tokens:
            raise ValueError("expected at least one token to forward, got none")
        end = self._length + len(tokens)
        if end > self._context_limit:
            raise ValueError(
                f"expected a sequence of at most {self._context_limit} tokens (the model's context), got {end}: "
                "shorten the prompt or the answer"
            )
        if self._device.type == "cuda":
            self._refuse_unless_known(tokens)
        try:
            rows = self._runner.forward(
                torch.tensor([tokens], dtype=torch.long), 1 if logits == "last" else len(tokens)
            )
        except BaseException:
            self._cache.crop_to(self._length)
            raise
        self._length = end
        return rows

    def crop(self, length: int) -> None:
        if length < 0:
            raise ValueError(f"expected a length of at least 0, got {length}")
        if length < self._length:
            self._cache.crop_to(length)
            self._length = length

    @torch.inference_mode()
    def export_kv(self, start: int, end: int) -> KVState:
        if not 0 <= start < end <= self._length:
            raise ValueError(f"expected a range within 0 to {self._length} (tokens in the cache), got {start} to {end}")
        return self._cache.copy_out(start, end)

    @torch.inference_mode()
    def import_kv(self, states: Sequence[KVState], length: int) -> None:
        if not 0 < length <= total_length(states):
            raise ValueError(f"expected a length of 1 to {total_length(states)} (tokens stored), got {length}")
        self.reset()
        at = 0
        try:
            for state in states:
                self._cache.append(state.layers, min(state.length, length - at))
                at += state.length
                if at >= length:
                    break
        except BaseException:
            self._cache.crop_to(0)
            raise
        self._length = length

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        rows: torch.Tensor = self._embedding(torch.tensor([tokens], dtype=torch.long, device=self._device))
        return rows

    def reset(self) -> None:
        self.crop(0)

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            # The decoding stream alone: a load that goes on beside it is not waited for.
            torch.cuda.current_stream(self._device).synchronize()

    def _refuse_unless_known(self, tokens: Sequence[int]) -> None:
        """As the embedding does on CPU. On CUDA it would fail long after, and the device could not be used again.

        Raises:
            IndexError: If a token is not in the vocabulary.
        """
        if min(tokens) < 0 or max(tokens) >= self._vocab_size:
            raise IndexError(f"expected token ids from 0 to {self._vocab_size - 1}, got {min(tokens)} to {max(tokens)}")

    def _choose_runner(self, graphs: bool | None) -> Runner:
        """A runner that says what the model says."""
        step = TokenStep(self.model)
        runner = choose_runner(step, self._device, graphs)
        if isinstance(runner, EagerRunner) or self._agrees(runner, EagerRunner(step, self._device)):
            return runner
        LOGGER.warning("%s says something else in fixed buffers: CUDA graphs are not used", type(self.model).__name__)
        return EagerRunner(step, self._device)

    @torch.inference_mode()
    def _agrees(self, runner: Runner, plain: Runner) -> bool:
        try:
            return agree(runner, plain, self._probes(), self._tolerance)
        except (*_UNUSABLE, RuntimeError):
            LOGGER.debug("the trial of fixed buffers failed", exc_info=True)
            return False

    @property
    def _tolerance(self) -> float:
        return ROLL_BACK_TOLERANCE.get(self._dtype, LOW_PRECISION_TOLERANCE)

    def _probes(self) -> list[int]:
        """Three tokens; a pad token would warn."""
        pad = self.model.config.get_text_config(decoder=True).pad_token_id
        return [token for token in range(4) if token != pad][:3]

    def _measure_kv(self) -> int:
        """Forward a token, a guess, roll back: shows that this works, and what a token weighs.

        Raises:
            UserError: If it does not.
        """
        first, other, guess = self._probes()
        try:
            self.forward([first, guess], "last")
            self.crop(1)
            again, held = self.forward([other], "last"), self._cache.length
            size = self._cache.copy_out(0, 1).bytes
            self.reset()
            never = self.forward([first, other], "last")
            self.reset()
        except _UNUSABLE as error:
            raise self._no_roll_back(f"{type(error).__name__}: {error}") from error
        if held != 2:
            raise self._no_roll_back(f"its cache held {held} tokens instead of 2")
        if not bool(torch.isfinite(again).all()):
            raise self._no_roll_back("its logits are not finite; where they are in another dtype, choose that")
        if not bool((again - never).abs().max() <= self._tolerance * (never.max() - never.min())):
            raise self._no_roll_back("a token that was taken back still changes what follows")
        return size

    def _no_roll_back(self, reason: str) -> UserError:
        return UserError(
            f"{type(self.model).__name__} does not keep its sequence in a cache that can be rolled back ({reason}): "
            f"{ADVICE}"
        )


def _products(int8: bool, compress: bool) -> Products:
    """How products are computed where there are kernels."""
    if int8:
        return INTEGERS if multiplies_integers() else NEAREST
    return EXACT if compress else UNCOMPRESSED


def _read(folder: Path, dtype: torch.dtype | str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model


def _fingerprint_before(folder: Path, dtype: torch.dtype) -> str | None:
    """The fingerprint where loading in ``dtype`` would change it; None where it can be taken from what was loaded.

    The fingerprint rounds to bf16, so fp32 and bf16 copies of a weight agree. Through fp16 it is rounded twice, which
    gives another value for one weight in sixteen: there it is taken from the weights as they lie in the file.
    """
    return target_fingerprint(_read(folder, "auto")) if dtype == torch.float16 else None
