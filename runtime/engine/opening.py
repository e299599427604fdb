"""Which engine runs a target, and opening it.

    transformers   any model folder, hub id or GGUF file (dequantised once), every dtype, CPU and CUDA
    llamacpp       a GGUF file as it is, on CPU, several times as fast there; needs llama-cpp-python

Both give greedy text that does not depend on what guesses, but each its own: they round differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.engine.dtypes import DTYPES, parse_dtype
from runtime.engine.llamacpp.library import is_installed, library
from runtime.engine.sources import names_gguf, resolve_first, resolve_gguf
from runtime.errors import UserError

if TYPE_CHECKING:
    from runtime.engine.base import TargetModel

AUTO, TRANSFORMERS, LLAMACPP = "auto", "transformers", "llamacpp"
ENGINES = (AUTO, TRANSFORMERS, LLAMACPP)
USUAL_DTYPE, USUAL_DEVICE = "float32", "cpu"


@dataclass(frozen=True)
class TargetChoice:
    """What a user says about the target.

    Attributes:
        source: Where it is had; None = as the zoo says.
        device: Torch device.
        dtype: Name of a number format.
        threads: CPU threads, at least 1.
        engine: One of ``ENGINES``.
    """

    source: str | None = None
    device: str = USUAL_DEVICE
    dtype: str = USUAL_DTYPE
    threads: int = 1
    engine: str = AUTO


def choose_engine(choice: TargetChoice, measured: str | None = None) -> str:
    """The engine that ``auto`` stands for, or the one that was named.

    With costs at hand (a bundle's), it is the engine they were measured on: a policy knows no other. Without, it is
    llama.cpp if the caller names a GGUF file, asks for neither a device nor a dtype, and llama-cpp-python is installed;
    else transformers. A zoo's own source does not count as named: installing a package must not change the texts of
    what ran before.

    Args:
        choice: What the user says.
        measured: Engine of the profile at hand.

    Raises:
        UserError: If there is no engine of that name.
    """
    if choice.engine not in ENGINES:
        raise UserError(f"unknown engine '{choice.engine}': expected one of {', '.join(ENGINES)}")
    if choice.engine != AUTO:
        return choice.engine
    if measured is not None:
        return measured if measured in ENGINES else TRANSFORMERS
    usual = (choice.device, choice.dtype) == (USUAL_DEVICE, USUAL_DTYPE)
    named = choice.source is not None and names_gguf(choice.source)
    return LLAMACPP if named and usual and is_installed() else TRANSFORMERS


def dtype_as_measured(engine: str, dtype: str) -> str:
    """The dtype to open a target in, that it runs in as it did when a profile was measured.

    Args:
        engine: The profile's.
        dtype: The profile's; an engine that runs files as they are is asked for the usual one.
    """
    return dtype if engine == TRANSFORMERS and dtype in DTYPES else USUAL_DTYPE


def open_target(choice: TargetChoice, sources: Sequence[str]) -> tuple[Path, TargetModel]:
    """Fetch (once) and load a target.

    Args:
        choice: What the user says; ``auto`` as in ``choose_engine``.
        sources: The zoo's own, used in order if the user names none; llama.cpp takes the first GGUF file of them.

    Returns:
        The target's folder, and the target.

    Raises:
        UserError: If it cannot be had or loaded, or the engine cannot do what is asked.
    """
    sources = (choice.source,) if choice.source else sources
    if choose_engine(choice) == LLAMACPP:
        return _open_llamacpp(choice, sources)
    dtype = parse_dtype(choice.dtype)
    folder = resolve_first(sources)
    from runtime.engine.transformers_model import TransformersModel  # here, because the import takes seconds

    return folder, TransformersModel.load(folder, choice.device, dtype)


def _open_llamacpp(choice: TargetChoice, sources: Sequence[str]) -> tuple[Path, TargetModel]:
    if choice.dtype != USUAL_DTYPE:
        raise UserError(
            f"dtype {choice.dtype} is for --engine transformers: llama.cpp computes in the format of the GGUF file; "
            "leave --dtype out, or choose a file of another format"
        )
    if choice.device != USUAL_DEVICE:
        raise UserError(f"device {choice.device} is for --engine transformers: the llama.cpp engine runs on cpu")
    library()  # before anything is fetched
    source = next((source for source in sources if names_gguf(source)), sources[0])
    path = resolve_gguf(source)
    folder = resolve_first((source,))
    from runtime.engine.llamacpp.model import LlamaCppModel  # here, because the import takes seconds

    return folder, LlamaCppModel.load(path, folder, choice.threads)
