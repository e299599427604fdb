"""One checkpoint, one file: a safetensors file whose header carries the rest as JSON, and a hash over both.

The file is written aside, brought to the disk, and renamed: it is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from agents.checkpoints.tree import Arrays, pack, unpack
from runtime.errors import UserError
from runtime.files import written_whole

SCHEMA = 1
ABOUT, HASH = "specpilot_checkpoint", "sha256"
"""Keys in the header."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that training goes on from.

    Attributes:
        decisions: Decisions taken so far.
        total: Decisions the run was to take; the schedules run over them.
        config: The composed configuration.
        inputs: Fingerprints of the files that training reads, by what they are.
        code: Revision of the code that wrote it.
        libraries: Versions of the libraries that results depend on.
        state: Learner, random generators, environments and standing, as a tree of arrays and plain values.
    """

    decisions: int
    total: int
    config: dict[str, Any]
    inputs: dict[str, str]
    code: str
    libraries: dict[str, str]
    state: dict[str, Any]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, aside first; an interruption at any moment leaves what was there before."""
    tree, arrays = pack(checkpoint.state)
    about = json.dumps({"schema": SCHEMA, **vars(checkpoint), "config": pack(checkpoint.config)[0], "state": tree})
    data = save(arrays, {ABOUT: about, HASH: _digest(about, arrays)})
    with written_whole(path) as aside, aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check its schema and hash.

    Raises:
        UserError: If there is none, or it is cut off, changed, or of another schema.
    """
    try:
        with safe_open(str(path), framework="np") as file:
            header = file.metadata() or {}
            arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}
        about, kept = header[ABOUT], header[HASH]
        values = json.loads(about)
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}: check the path") from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} is not a whole checkpoint ({error}): resume from an earlier one") from None
    schema = values.pop("schema", None)
    if schema != SCHEMA:
        raise UserError(f"{path}: expected a checkpoint of schema {SCHEMA}, got {schema}: use the code that wrote it")
    if kept != _digest(about, arrays):
        raise UserError(f"{path} was changed after it was written (hash differs): resume from an earlier one")
    config = unpack(values["config"], {})  # keys that are numbers stay numbers
    return Checkpoint(**{**values, "config": config, "state": unpack(values["state"], arrays)})


def _digest(about: str, arrays: Arrays) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
