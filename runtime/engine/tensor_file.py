"""A safetensors file that is read piece by piece and never mapped.

A mapped file that somebody truncates, or whose disk fails, ends the process at the next access to it (SIGBUS), maybe
long after it was opened. One that is read raises an error, and what was read stays whatever becomes of the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from runtime.engine.malloc import new_lasting

MOST_HEADER_BYTES = 100_000_000
"""Longest header, as in the format's own library."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class DamagedFileError(ValueError):
    """A file that is no whole safetensors file, or not the one that was expected."""


class Entry(NamedTuple):
    """Where a tensor lies: its bytes begin so far behind the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int


class TensorFile:
    """A safetensors file that is open.

    Args:
        file: The file, open for reading.

    Raises:
        DamagedFileError: If it is no whole safetensors file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        size = os.fstat(file.fileno()).st_size
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
            raise DamagedFileError(f"expected a header within its {size} bytes, got one of {length}")
        self._start = 8 + length
        try:
            header = json.loads(file.read(length))
            self._metadata: dict[str, str] = header.pop("__metadata__", {})
            self._entries = {name: _entry(facts, size - self._start) for name, facts in header.items()}
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise DamagedFileError(f"its header cannot be read: {error}") from error

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._entries)

    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        return self._metadata

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; nothing is read.

        Raises:
            KeyError: If there is no such tensor.
        """
        return self._entries[name].shape

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor, in memory of its own.

        Raises:
            KeyError: If there is no such tensor.
            DamagedFileError: If the file has become shorter.
            OSError: If the disk does not give it.
        """
        entry = self._entries[name]
        tensor = new_lasting(entry.shape, entry.dtype, whole=True)
        content = tensor.reshape(-1).view(torch.uint8).numpy().data
        self._file.seek(self._start + entry.begin)
        got = self._file.readinto(content)  # type: ignore[attr-defined]  # every open file has it
        if got != content.nbytes:
            raise DamagedFileError(f"it ends within '{name}', {content.nbytes - got} bytes too early")
        return tensor


def _entry(facts: Any, data_bytes: int) -> Entry:
    dtype, shape = DTYPES[facts["dtype"]], tuple(facts["shape"])
    begin, end = facts["data_offsets"]
    if not all(type(size) is int and size >= 0 for size in (*shape, begin)):
        raise ValueError(f"expected sizes of at least 0, got {facts}")
    if end - begin != math.prod(shape) * dtype.itemsize or end > data_bytes:
        raise ValueError(f"expected a tensor within {data_bytes} bytes, got {facts}")
    return Entry(dtype, shape, begin)


@contextmanager
def opened(path: Path, sha256: str = "") -> Iterator[TensorFile]:
    """A safetensors file, open until the end of the block.

    What is read within the block are the bytes that have the hash: the file is hashed first, and one that was written
    to in the meantime is refused at the end of the block. One that was renamed or deleted meanwhile is still the same.

    Args:
        path: The file.
        sha256: Hash (hex) that its bytes must have; empty = any.

    Raises:
        DamagedFileError: If it is no whole safetensors file, or has another hash.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        before = _written(file)
        if sha256:
            got = hashlib.file_digest(file, "sha256").hexdigest()
            if got != sha256:
                raise DamagedFileError(f"expected the hash {sha256[:12]}…, got {got[:12]}…: it is damaged or another")
        yield TensorFile(file)
        if sha256 and _written(file) != before:
            raise DamagedFileError("it was written to while it was read")


def _written(file: BinaryIO) -> tuple[int, int]:
    """Size and time of the last change of an open file's content."""
    facts = os.fstat(file.fileno())
    return facts.st_size, facts.st_mtime_ns
