"""A GGUF file made into an ordinary model folder: fp32 weights, tokenizer, ending tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from runtime.errors import UserError

MAGIC = b"GGUF"


def convert_gguf(path: Path, folder: Path) -> None:
    """Dequantise ``path`` to fp32 and save it with its tokenizer in ``folder``, which exists.

    Raises:
        UserError: If the file is no whole GGUF file of a supported architecture, or a package for reading is missing.
    """
    _refuse_unless_gguf(path)
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        quantised = AutoModelForCausalLM.from_pretrained(dtype=torch.float32, **source)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except ImportError as error:
        raise UserError(f"reading {path.name} needs more packages: pip install gguf accelerate ({error})") from error
    except MemoryError:
        raise UserError(f"{path}: too little memory to dequantise; convert it on a larger machine") from None
    except Exception as error:  # readers fail in many ways on a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a readable GGUF model ({reason}); download it again") from error
    model = _plain(quantised)
    model.generation_config.eos_token_id = _eos_ids(quantised, tokenizer)
    model.generation_config.bos_token_id = quantised.config.bos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _refuse_unless_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise UserError(f"{path}: expected a GGUF file, cannot read it ({error.strerror}); check the path") from error
    if magic != MAGIC:
        raise UserError(f"{path}: expected a GGUF file (it starts with 'GGUF'), got {magic!r}; download it again")


@torch.no_grad()
def _plain(quantised: PreTrainedModel) -> PreTrainedModel:
    """The same model without the mark of its quantisation, which forbids saving."""
    data = quantised.config.to_dict()
    for key in ("quantization_config", "transformers_version", "_name_or_path"):
        data.pop(key, None)
    config = AutoConfig.for_model(**data)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    missing, unexpected = model.load_state_dict(quantised.state_dict(), strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise UserError(
            f"the GGUF file does not hold the whole {type(model).__name__}: missing {missing}, unknown {unexpected}; "
            "use another file or the original model"
        )
    return model


def _eos_ids(model: PreTrainedModel, tokenizer: Any) -> int | list[int]:
    """Every token that the model's or the tokenizer's settings call an end."""
    named = (model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.eos_token_id)
    ids: set[int] = set()
    for value in named:
        ids.update(value if isinstance(value, list) else [value] if value is not None else [])
    if not ids:
        print("warning: the GGUF file names no ending token: texts end at their length limit", file=sys.stderr)
        return []
    return sorted(ids) if len(ids) > 1 else ids.pop()
