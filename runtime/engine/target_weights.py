"""Single tensors of a model folder, for drafts that are made of the target's own layers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from runtime.errors import UserError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class TargetWeights:
    """The tensors of a folder in the usual Hugging Face form: one safetensors file, or several with an index.

    Args:
        folder: The target's folder.

    Raises:
        UserError: If there is no such folder, or no readable safetensors in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Shape of every tensor, by the name it has in the folder."""
        self._file_of: dict[str, Path] = {}
        for path in _files(folder):
            try:
                with safe_open(path, framework="pt", device="cpu") as file:
                    for name in file.keys():
                        self.shapes[name] = tuple(file.get_slice(name).get_shape())
                        self._file_of[name] = path
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path}: not a readable safetensors file ({error}); fetch the target again") from error

    def file_of(self, name: str) -> Path:
        """The file that a tensor lies in.

        Raises:
            KeyError: If there is no such tensor.
        """
        return self._file_of[name]

    def tensor(self, name: str) -> torch.Tensor:
        """A copy in fp32. The file is closed again, so that none of it stays mapped.

        Raises:
            KeyError: If there is no such tensor.
        """
        with safe_open(self._file_of[name], framework="pt", device="cpu") as file:
            return torch.empty(self.shapes[name], dtype=torch.float32).copy_(file.get_tensor(name))


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        raise UserError(
            f"{folder}: expected the target's folder with {SINGLE} or {INDEX}, found neither; check the path or fetch "
            "the target again with `specpilot pull`"
        )
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return [folder / name for name in sorted(set(index["weight_map"].values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / INDEX}: not a readable index ({error!r}); fetch the target again") from error
