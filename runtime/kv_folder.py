"""Stored KV on disk: one safetensors file a block, named after all tokens up to its end.

    <folder>/<schema>-<model>/<name of the block>.safetensors
        kv         the block's KV, flat                        tokens   its token ids, int32
        metadata   schema, model, parent (name of the block above), shapes, sha256 of kv

A file is written aside and renamed, so it is whole or absent. It is read only if its metadata says that it is this very
block of this very model, and if its content has the hash it was written with; else the tokens are computed again. The
model's name covers weights, dtype, device and library versions: KV of one is of no use to another.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from runtime.engine.kv_state import KVState
from runtime.engine.tensor_file import opened
from runtime.files import is_alive, written_whole
from runtime.memory.base import StoredBlock
from runtime.memory.kv_tree import Node

LOGGER = logging.getLogger(__name__)

KV_SCHEMA = "1"
SUFFIX = ".safetensors"


class KVFolder:
    """Implements ``KVDisk``.

    Args:
        folder: Where files go; made when the first is written.
        model: Name of the model whose KV it is: fingerprint, dtype, engine.
        device: Where payloads are brought.
    """

    def __init__(self, folder: Path, model: str, device: torch.device | str = "cpu") -> None:
        self._model, self._device = model, device
        self._folder = folder / f"{KV_SCHEMA}-{hashlib.sha256(model.encode()).hexdigest()[:16]}"

    def path(self, node: Node) -> Path:
        """Where a block's file is."""
        return self._folder / f"{node.name()}{SUFFIX}"

    def read(self, nodes: Sequence[Node]) -> list[KVState]:
        payloads = []
        for node in nodes:
            try:
                payloads.append(self._read(node))
            except (OSError, ValueError, KeyError) as error:
                LOGGER.warning("stored KV %s cannot be used and is computed again: %s", self.path(node), error)
                break
        return payloads

    def write(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            state, parent = node.payload, node.parent
            if parent is None or state is None:  # dropped meanwhile
                continue
            kv = state.buffer.cpu()
            metadata = {
                "schema": KV_SCHEMA,
                "model": self._model,
                "parent": parent.name(),
                "shapes": json.dumps(state.shapes),
                "sha256": _digest(kv),
            }
            with written_whole(self.path(node)) as aside:
                try:
                    save_file({"kv": kv, "tokens": torch.tensor(node.block, dtype=torch.int32)}, aside, metadata)
                except SafetensorError as error:
                    raise OSError(f"{self.path(node)}: {error}") from error

    def delete(self, node: Node) -> None:
        _delete(self.path(node))

    def scan(self) -> list[StoredBlock]:
        if not self._folder.is_dir():
            return []
        found: dict[str, StoredBlock] = {}
        for leftover in self._folder.glob(".*.tmp"):
            if not is_alive(leftover.name.split(".")[-2]):
                _delete(leftover)
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                with opened(path) as file:
                    parent = self._metadata(file.metadata())["parent"]
                    block = tuple(file.get_tensor("tokens").tolist())
                found[path.stem] = StoredBlock(path.stem, parent, block)
            except (OSError, ValueError, KeyError) as error:
                LOGGER.warning("deleting %s, which is no stored KV that can be used: %s", path, error)
                _delete(path)
        return self._with_parents(found)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _read(self, node: Node) -> KVState:
        with opened(self.path(node)) as file:
            metadata = self._metadata(file.metadata())
            tokens, kv = file.get_tensor("tokens"), file.get_tensor("kv")
        if tuple(tokens.tolist()) != node.block:
            raise ValueError("it is of other tokens")
        if _digest(kv) != metadata["sha256"]:
            raise ValueError("its content does not have the hash it was written with")
        return KVState.of_buffer(kv.to(self._device), [tuple(shape) for shape in json.loads(metadata["shapes"])])

    def _metadata(self, metadata: dict[str, str]) -> dict[str, str]:
        """The metadata, if it is of this schema and model."""
        for key, expected in (("schema", KV_SCHEMA), ("model", self._model)):
            if metadata.get(key) != expected:
                raise ValueError(f"expected {key} {expected}, got {metadata.get(key)}")
        return metadata

    def _with_parents(self, found: dict[str, StoredBlock]) -> list[StoredBlock]:
        """Those whose blocks above are all there, parents first; the others are deleted."""
        behind: dict[str, list[StoredBlock]] = {}
        for stored in found.values():
            behind.setdefault(stored.parent_name, []).append(stored)
        ordered = list(behind.get("", []))
        for stored in ordered:
            ordered.extend(behind.get(stored.name, []))
        for name in found.keys() - {stored.name for stored in ordered}:
            _delete(self._folder / f"{name}{SUFFIX}")
        return ordered


def _delete(path: Path) -> None:
    """Delete a file; that it cannot be deleted is told, and harms nothing but the room it takes."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        LOGGER.warning("%s cannot be deleted (%s): delete it by hand", path, error)


def _digest(kv: torch.Tensor) -> str:
    """SHA-256 (hex) of a flat tensor's bytes."""
    return hashlib.sha256(kv.contiguous().view(torch.uint8).numpy().data).hexdigest()
