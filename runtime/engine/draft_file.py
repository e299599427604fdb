"""The draft file: one safetensors file that holds a draft's weights, its vocabulary and where it came from.

A draft reads through the target's input embedding table, so the file holds no embedding. Tensors:

    vocab              (V,) int32       token ids the draft can guess, ascending
    <name>.int8        (rows, columns)  a matrix, int8
    <name>.scale       (rows,) fp32     its scale: matrix = int8 * scale
    <name>             fp32             any tensor that is not a matrix

``<name>`` is ``head.weight`` (V rows) or a parameter of the target's base model, e.g.
``layers.0.self_attn.q_proj.weight``. Metadata (strings): ``schema``, ``name``, ``domain``, ``target_sha256``,
``config`` (JSON: the target's configuration cut to the draft's layers), ``training`` (JSON: settings and results).

A *recipe* is a draft file without tensors, for a draft that is the target with layers left out. It guesses over the
target's whole vocabulary, and its weights are copied from the target's folder when it is loaded. Metadata beside the
above: ``layers`` (JSON: the target's layers it is made of) and ``tensors`` (JSON: by ``<name>``, the tensor of the
target's safetensors that is copied).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from runtime.engine.quantise import Int8Matrix, dequantise, quantise
from runtime.engine.target_weights import TargetWeights
from runtime.engine.tensor_file import DamagedFileError, TensorFile, opened
from runtime.errors import UserError

SCHEMA = "specpilot-draft-1"
SUFFIX = ".draft.safetensors"
HEAD = "head.weight"
VOCAB = "vocab"


@dataclass(frozen=True)
class Recipe:
    """What of the target a draft is made of.

    Attributes:
        layers: Layers of the target, ascending.
        tensors: By parameter of the draft, the name of the tensor in the target's safetensors.
    """

    layers: tuple[int, ...]
    tensors: dict[str, str]


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
        recipe: What to copy from the target; None for a draft with weights of its own.
    """

    name: str
    domain: str
    target_sha256: str
    config: dict[str, Any]
    training: dict[str, Any]
    schema: str = SCHEMA
    recipe: Recipe | None = None


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
    _write(path, header, stored)


def save_recipe(path: Path, header: DraftHeader) -> None:
    """Write a draft file that holds no weights, aside first.

    Args:
        path: The file; its folder is made.
        header: What the file says about itself, with a recipe.

    Raises:
        ValueError: If the header has no recipe, or the recipe no head.
    """
    if header.recipe is None or HEAD not in header.recipe.tensors:
        raise ValueError(f"expected a header with a recipe that names a '{HEAD}', got {header.recipe}")
    _write(path, header, {})


def _write(path: Path, header: DraftHeader, stored: dict[str, torch.Tensor]) -> None:
    metadata = {
        "schema": header.schema,
        "name": header.name,
        "domain": header.domain,
        "target_sha256": header.target_sha256,
        "config": json.dumps(header.config, sort_keys=True),
        "training": json.dumps(header.training, sort_keys=True),
    }
    if header.recipe is not None:
        metadata["layers"] = json.dumps(header.recipe.layers)
        metadata["tensors"] = json.dumps(header.recipe.tensors, sort_keys=True)
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


def read_draft(path: Path, target_folder: Path | None = None) -> DraftFile:
    """A whole draft, its matrices dequantised.

    Args:
        path: The draft file.
        target_folder: The target's folder, which a recipe needs.

    Raises:
        UserError: If the file is missing, damaged or of another format, or a recipe's target is.
    """
    with opened_draft(path, target_folder) as draft:
        return DraftFile(draft.header, draft.vocab, {name: draft.tensor(name) for name in draft.names})


class DraftParts(Protocol):
    """A draft that is read tensor by tensor; only what was handed out is in memory.

    Attributes:
        header: What the file says about itself.
        vocab: ``(V,)`` int32, ascending.
        names: Parameters: first those that are not matrices, then the matrices, the largest first.
    """

    header: DraftHeader
    vocab: torch.Tensor
    names: tuple[str, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter; nothing is read."""

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter in fp32, read (and dequantised) now."""

    def quantised(self, name: str) -> Int8Matrix | None:
        """A matrix as the file holds it, read now; None if it is held in floats."""


class OpenDraft:
    """Implements ``DraftParts`` for a file with weights of its own.

    Args:
        header: What the file says about itself.
        file: The opened safetensors file.

    Raises:
        KeyError: If the file has no vocabulary.
        ValueError: If vocabulary and head do not belong together.
    """

    def __init__(self, header: DraftHeader, file: TensorFile) -> None:
        self.header, self._file = header, file
        self._stored = frozenset(file.keys())
        self.vocab: torch.Tensor = file.get_tensor(VOCAB)
        matrices = {name.removesuffix(".int8") for name in self._stored if name.endswith(".int8")}
        scales = {f"{name}.scale" for name in matrices}
        others = {name for name in self._stored if not name.endswith(".int8")} - scales - {VOCAB}
        self.names: tuple[str, ...] = (*sorted(others), *sorted(matrices, key=self._elements, reverse=True))
        if HEAD not in self.names:
            raise ValueError(f"expected a tensor '{HEAD}', got {sorted(self.names)}")
        _check_vocab(self.vocab, self.shape(HEAD))

    def shape(self, name: str) -> tuple[int, ...]:
        stored = f"{name}.int8" if f"{name}.int8" in self._stored else name
        return self._file.shape(stored)

    def tensor(self, name: str) -> torch.Tensor:
        quantised = self.quantised(name)
        if quantised is None:
            plain: torch.Tensor = self._file.get_tensor(name).to(torch.float32)
            return plain
        return dequantise(quantised)

    def quantised(self, name: str) -> Int8Matrix | None:
        if f"{name}.int8" not in self._stored:
            return None
        return Int8Matrix(self._file.get_tensor(f"{name}.int8"), self._file.get_tensor(f"{name}.scale"))

    def _elements(self, name: str) -> int:
        return math.prod(self.shape(name))


class OpenRecipe:
    """Implements ``DraftParts`` for a recipe: parameters are read from the target.

    Args:
        header: What the file says about itself.
        recipe: Its recipe.
        target: The target's tensors.

    Raises:
        UserError: If the target lacks a tensor.
        KeyError: If the recipe names no head.
    """

    def __init__(self, header: DraftHeader, recipe: Recipe, target: TargetWeights) -> None:
        self.header, self._recipe, self._target = header, recipe, target
        if missing := sorted(set(recipe.tensors.values()) - target.shapes.keys()):
            raise UserError(
                f"draft '{header.name}' is made of the target's own tensors, {target.folder} has no '{missing[0]}': "
                "use the target it was made for, or prune this one with `python -m envs.zoo.prune`"
            )
        self.vocab: torch.Tensor = torch.arange(self.shape(HEAD)[0], dtype=torch.int32)
        matrices = [name for name in sorted(recipe.tensors) if len(self.shape(name)) == 2]
        others = sorted(recipe.tensors.keys() - set(matrices))
        self.names: tuple[str, ...] = (
            *others,
            *sorted(matrices, key=lambda name: math.prod(self.shape(name)), reverse=True),
        )

    def shape(self, name: str) -> tuple[int, ...]:
        return self._target.shapes[self._recipe.tensors[name]]

    def tensor(self, name: str) -> torch.Tensor:
        return self._target.tensor(self._recipe.tensors[name])

    def quantised(self, name: str) -> Int8Matrix | None:
        return None


@contextmanager
def opened_draft(path: Path, target_folder: Path | None = None, sha256: str = "") -> Iterator[DraftParts]:
    """A draft file, opened.

    Args:
        path: The draft file.
        target_folder: The target's folder, which a recipe needs.
        sha256: Hash (hex) that the file must have; empty = any.

    Raises:
        UserError: If the file is missing, damaged, another one or of another format, or a recipe's target is.
    """
    with _opened(path, sha256) as file:
        header = _header(path, file)
        try:
            yield _parts(path, header, file, target_folder)
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{path}: a draft file with parts missing or not fitting ({error}); distill it again"
            ) from error


def _parts(path: Path, header: DraftHeader, file: TensorFile, target_folder: Path | None) -> DraftParts:
    if header.recipe is None:
        return OpenDraft(header, file)
    if target_folder is None:
        raise UserError(
            f"{path}: a recipe, whose weights are layers of the target; expected the target's folder, got none: name it"
        )
    return OpenRecipe(header, header.recipe, TargetWeights(target_folder))


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
def _opened(path: Path, sha256: str = "") -> Iterator[TensorFile]:
    if not path.is_file():
        raise UserError(f"{path}: expected a draft file, found none; build drafts with 'python -m envs.zoo.distill'")
    try:
        with opened(path, sha256) as file:
            yield file
    except DamagedFileError as error:
        raise UserError(f"{path}: not a readable draft file ({error}); copy or distill it again") from error


def _header(path: Path, file: TensorFile) -> DraftHeader:
    metadata = file.metadata()
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
            recipe=_recipe(metadata) if "layers" in metadata else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: a draft file with a damaged header ({error!r}); distill it again") from error


def _recipe(metadata: Mapping[str, str]) -> Recipe:
    return Recipe(tuple(map(int, json.loads(metadata["layers"]))), dict(json.loads(metadata["tensors"])))
