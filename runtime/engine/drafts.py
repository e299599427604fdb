"""How drafts are brought into memory, by the engine that runs the target."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runtime.engine.draft_sequence import Draft
from runtime.engine.llamacpp.draft import load_native_draft
from runtime.engine.loaded_draft import load_draft
from runtime.engine.native.install import multiplies_integers
from runtime.engine.native.products import INTEGERS
from runtime.engine.opening import LLAMACPP

LOGGER = logging.getLogger(__name__)

LoadDraft = Callable[[Path, str, Path | None, str], Draft]
"""A draft file, a torch device, the target's folder and the file's hash (hex; empty = any), to a draft in memory."""


def draft_loader(engine: str, dtype_name: str, threads: int, cells: int) -> LoadDraft:
    """What loads drafts.

    Args:
        engine: The target's. Drafts run in the same one where they can, else in torch.
        dtype_name: The target's. Beside a target in 8 bit drafts multiply integers as well.
        threads: CPU threads of a draft's forwards in llama.cpp.
        cells: Tokens that a draft's KV has room for in llama.cpp.
    """
    if engine == LLAMACPP:
        return partial(_load_native, threads, cells)
    if dtype_name == "int8" and multiplies_integers():
        return _load_integers
    return load_torch_draft


def load_torch_draft(path: Path, device: str, target_folder: Path | None, sha256: str) -> Draft:
    """A draft in torch, see ``load_draft``."""
    return load_draft(path, device, target_folder=target_folder, sha256=sha256)


def _load_integers(path: Path, device: str, target_folder: Path | None, sha256: str) -> Draft:
    return load_draft(path, device, target_folder=target_folder, sha256=sha256, products=INTEGERS)


def _load_native(threads: int, cells: int, path: Path, device: str, target_folder: Path | None, sha256: str) -> Draft:
    draft = load_native_draft(path, sha256, threads, cells)
    if draft is not None:
        return draft
    LOGGER.info("%s runs in torch: llama.cpp takes neither recipes nor this family", path)
    return load_torch_draft(path, device, target_folder, sha256)
