"""The draft file: one safetensors file that holds a draft's weights, its vocabulary and where it came from.

A draft reads through the target's input embedding table, so the file holds no embedding. Tensors:

    vocab              (V,) int32       token ids the draft can guess, ascending
    <name>.int8        (rows, columns)  a matrix, int8
    <name>.scale       (rows,) fp32     its scale: matrix = int8 * scale
    <name>             fp32             any tensor that is not a matrix

``<name>`` is ``head.weight`` (V rows) or a parameter of the target's base model, e.g.
``layers.0.self_attn.q_proj.weight``. Metadata (strings): ``schema``, ``name``, ``domain``, ``target_sha256``,
``config`` (JSON: the target's configuration cut to the draft's layers), ``training`` (JSON: settings and results).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from runtime.engine.quantise import Int8Matrix, dequantise, quantise
from runtime.errors import UserError

SCHEMA = "specpilot-draft-1"
SUFFIX = ".draft.safetensors"
HEAD = "head.weight"
VOCAB = "vocab"


@dataclass(frozen=True)
class DraftHeader:
    """What a draft file says about itself.

    Attributes:
        name: The draft's name in its zoo.
        domain: Domain it was distilled on, or ``generalist``.
        target_sha256: ``target_fingerprint`` of its target.
        config: The target's Hugging Face configuration with ``num_hidden_layers`` cut to the draft's.
        training: Settings and results of its training; free form, for people and for ``distill``.
        schema: Version of the file format.
    """

    name: str
    domain: str
    target_sha256: str
    config: dict[str, Any]
    training: dict[str, Any]
    schema: str = SCHEMA


@dataclass(frozen=True)
class DraftFile:
    """A draft in memory.

    Attributes:
        header: What it says about itself.
        vocab: ``(V,)`` int32, ascending.
        tensors: fp32, by name; ``head.weight`` is ``(V, width)``.
    """

    header: DraftHeader
    vocab: torch.Tensor
    tensors: dict[str, torch.Tensor]


def save_draft(path: Path, header: DraftHeader, vocab: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a draft file aside, then rename it: the file is whole or absent.

    Args:
        path: The file; its folder is made.
        header: What the file says about itself.
        vocab: ``(V,)`` token ids, ascending and distinct.
        tensors: Floating-point weights by name, ``head.weight`` of ``(V, width)`` among them.

    Raises:
        ValueError: If the vocabulary and the head do not belong together, or a weight is not finite.
    """
    _check_parts(vocab, tensors)
    stored: dict[str, torch.Tensor] = {VOCAB: vocab.to("cpu", torch.int32).contiguous()}
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            stored[f"{name}.int8"], stored[f"{name}.scale"] = quantise(tensor)
        else:
            stored[name] = tensor.detach().to("cpu", torch.float32).contiguous()
    metadata = {
        "schema": header.schema,
        "name": header.name,
        "domain": header.domain,
        "target_sha256": header.target_sha256,
        "config": json.dumps(header.config, sort_keys=True),
        "training": json.dumps(header.training, sort_keys=True),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save_file(stored, aside, metadata=metadata)
    aside.replace(path)


def read_draft_header(path: Path) -> DraftHeader:
    """The header alone; no weight is read.

    Raises:
        UserError: If the file is missing, damaged or of another format.
    """
    with _opened(path) as file:
        return _header(path, file)


def read_draft(path: Path) -> DraftFile:
    """A whole draft, its matrices dequantised.

    Raises:
        UserError: If the file is missing, damaged or of another format.
    """
    with _opened(path) as file:
        header = _header(path, file)
        stored = {name: file.get_tensor(name) for name in file.keys()}
    try:
        vocab = stored.pop(VOCAB)
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in stored.items():
            if name.endswith(".int8"):
                base = name.removesuffix(".int8")
                tensors[base] = dequantise(Int8Matrix(tensor, stored[f"{base}.scale"]))
            elif f"{name.removesuffix('.scale')}.int8" not in stored:
                tensors[name] = tensor.to(torch.float32)
        _check_parts(vocab, tensors)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{path}: a draft file with parts missing or not fitting ({error}); distill it again"
        ) from error
    return DraftFile(header, vocab, tensors)


def _check_parts(vocab: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
    if HEAD not in tensors:
        raise ValueError(f"expected a tensor '{HEAD}', got {sorted(tensors)}")
    head = tensors[HEAD]
    if vocab.dim() != 1 or head.dim() != 2 or len(vocab) != len(head):
        raise ValueError(
            f"expected a vocabulary (V,) and a head (V, width), got {tuple(vocab.shape)} and {tuple(head.shape)}"
        )
    if not bool((vocab[1:] > vocab[:-1]).all()):
        raise ValueError("expected ascending, distinct vocabulary ids: sort them")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise UserError(f"{path}: expected a draft file, found none; build drafts with 'python -m envs.zoo.distill'")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise UserError(f"{path}: not a readable draft file ({error}); copy or distill it again") from error


def _header(path: Path, file: Any) -> DraftHeader:
    metadata = file.metadata() or {}
    schema = metadata.get("schema", "none")
    if schema != SCHEMA:
        raise UserError(
            f"{path}: expected a draft file of schema {SCHEMA}, got {schema}; distill it again with this version"
        )
    try:
        return DraftHeader(
            name=metadata["name"],
            domain=metadata["domain"],
            target_sha256=metadata["target_sha256"],
            config=json.loads(metadata["config"]),
            training=json.loads(metadata["training"]),
        )
    except (KeyError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: a draft file with a damaged header ({error!r}); distill it again") from error
