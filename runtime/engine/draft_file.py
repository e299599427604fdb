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
import math
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
    with opened_draft(path) as draft:
        return DraftFile(draft.header, draft.vocab, {name: draft.tensor(name) for name in draft.names})


class OpenDraft:
    """A draft file that is read tensor by tensor; only what was handed out is in memory.

    Args:
        header: What the file says about itself.
        file: The opened safetensors file.

    Raises:
        KeyError: If the file has no vocabulary.
        ValueError: If vocabulary and head do not belong together.
    """

    def __init__(self, header: DraftHeader, file: Any) -> None:
        self.header, self._file = header, file
        self._stored = frozenset(file.keys())
        self.vocab: torch.Tensor = file.get_tensor(VOCAB)
        matrices = {name.removesuffix(".int8") for name in self._stored if name.endswith(".int8")}
        scales = {f"{name}.scale" for name in matrices}
        others = {name for name in self._stored if not name.endswith(".int8")} - scales - {VOCAB}
        self.names: tuple[str, ...] = (*sorted(others), *sorted(matrices, key=self._elements, reverse=True))
        """Parameters: first those that are not matrices, then the matrices, the largest first."""
        if HEAD not in self.names:
            raise ValueError(f"expected a tensor '{HEAD}', got {sorted(self.names)}")
        _check_vocab(self.vocab, self.shape(HEAD))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter; nothing is read."""
        stored = f"{name}.int8" if f"{name}.int8" in self._stored else name
        return tuple(self._file.get_slice(stored).get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter in fp32, read and dequantised now."""
        if f"{name}.int8" not in self._stored:
            plain: torch.Tensor = self._file.get_tensor(name).to(torch.float32)
            return plain
        return dequantise(Int8Matrix(self._file.get_tensor(f"{name}.int8"), self._file.get_tensor(f"{name}.scale")))

    def _elements(self, name: str) -> int:
        return math.prod(self.shape(name))


@contextmanager
def opened_draft(path: Path) -> Iterator[OpenDraft]:
    """A draft file, opened.

    Raises:
        UserError: If the file is missing, damaged or of another format.
    """
    with _opened(path) as file:
        header = _header(path, file)
        try:
            yield OpenDraft(header, file)
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{path}: a draft file with parts missing or not fitting ({error}); distill it again"
            ) from error


def _check_parts(vocab: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
    if HEAD not in tensors:
        raise ValueError(f"expected a tensor '{HEAD}', got {sorted(tensors)}")
    _check_vocab(vocab, tuple(tensors[HEAD].shape))


def _check_vocab(vocab: torch.Tensor, head: tuple[int, ...]) -> None:
    if vocab.dim() != 1 or len(head) != 2 or len(vocab) != head[0]:
        raise ValueError(f"expected a vocabulary (V,) and a head (V, width), got {tuple(vocab.shape)} and {head}")
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
