"""What the engine takes from the folder that a GGUF file was converted to: the table that drafts read, and whose it is.

llama.cpp does not show its weights. The folder holds the very same ones, dequantised, and the embedding table is read
through a file mapping: only rows that were asked for take memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from runtime.engine.fingerprint import fingerprint_of
from runtime.engine.suitability import context_limit, refuse_unless_croppable
from runtime.engine.target_weights import TargetWeights
from runtime.errors import UserError


class ConvertedFolder:
    """The folder of a converted GGUF file.

    Args:
        folder: With config.json and safetensors.

    Raises:
        UserError: If it cannot be read, or its model cannot be rolled back.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._weights = TargetWeights(folder)
        self._shell = _shell(_config(folder))
        refuse_unless_croppable(self._shell)
        self.context_limit = context_limit(self._shell.config)
        self._table = self._mapped(self._name_of_table())
        module = self._shell.get_input_embeddings()
        self._scale = float(getattr(module, "scalar_embed_scale", 1.0))  # Gemma's table scales what it gives

    @property
    def vocab_size(self) -> int:
        """Rows of the table."""
        return len(self._table)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Rows of the input embedding table as the first layer reads them, float32, shape (1, n, width)."""
        rows = self._table[torch.tensor([tokens], dtype=torch.long)].float()
        return rows if self._scale == 1.0 else rows * self._scale

    def fingerprint(self) -> str:
        """The target fingerprint of the weights; reads some values of every tensor."""
        names = [name for name, _ in self._shell.named_parameters()]
        if not set(names) <= self._weights.shapes.keys():  # a family that is stored under other names
            raise UserError(
                f"{self.folder}: the llama.cpp engine cannot tell whose weights these are, for a "
                f"{type(self._shell).__name__} is stored under other names than it uses; use --engine transformers"
            )
        return fingerprint_of((name, self._mapped(name)) for name in sorted(names))

    def _name_of_table(self) -> str:
        table = self._shell.get_input_embeddings().weight
        return next(name for name, parameter in self._shell.named_parameters() if parameter is table)

    def _mapped(self, name: str) -> torch.Tensor:
        """A tensor that lies in the file."""
        try:
            with safe_open(self._weights.file_of(name), framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor
        except (KeyError, OSError, SafetensorError) as error:
            raise UserError(
                f"{self.folder}: no readable tensor {name} ({error}); remove the folder and fetch the target again "
                "with `specpilot pull`"
            ) from error


def _config(folder: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder}: expected a folder with config.json, got: {(str(error).splitlines() or ['?'])[0]}; fetch the "
            "target again with `specpilot pull`"
        ) from error
    return config


def _shell(config: PreTrainedConfig) -> PreTrainedModel:
    """The model without weights: its names, shapes and kinds."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model
