"""Which weights a model folder holds: a hash of the tensors' content, the same on every machine.

The bytes of a safetensors file depend on the library that wrote it, and so does ``config.json``; the tensors do not.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from runtime.errors import UserError
from runtime.files import write_json

LOGGER = logging.getLogger(__name__)

CACHE_NAME = ".specpilot-fingerprint.json"
"""Where the result is kept, beside the weights, with the files' sizes and times."""

SHAPE_KEYS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "vocab_size")
"""Settings that belong to the hash: what tensors alone do not say, and every version writes the same way."""


def model_fingerprint(folder: Path) -> str:
    """SHA-256 (hex) over every tensor's name, dtype, shape and bytes, in name order, and the model's type and shape.

    The result is cached beside the weights, so only the first call reads them (about a second per GB).

    Raises:
        UserError: If the folder holds no readable safetensors model.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise UserError(
            f"{folder}: expected a model folder with config.json and *.safetensors, found none; check the path or "
            "fetch the model with `specpilot pull`"
        )
    stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in (*files, folder / "config.json")]
    cached = _read_cache(folder / CACHE_NAME)
    if cached.get("files") == stamps and isinstance(cached.get("sha256"), str):
        return str(cached["sha256"])
    try:
        sha256 = _hash(files, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{folder}: not a readable model ({error}); fetch it again with `specpilot pull`") from error
    try:
        write_json(folder / CACHE_NAME, {"files": stamps, "sha256": sha256})
    except OSError as error:
        LOGGER.info("the fingerprint of %s is not cached (%s)", folder, error)
    return sha256


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _hash(files: list[Path], config: dict[str, Any]) -> str:
    place: dict[str, Path] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            place.update(dict.fromkeys(file.keys(), path))
    digest = hashlib.sha256()
    digest.update(json.dumps([config.get("model_type"), [config.get(key) for key in SHAPE_KEYS]]).encode())
    for name in sorted(place):
        with safe_open(place[name], framework="pt") as file:
            tensor = file.get_tensor(name).contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()
