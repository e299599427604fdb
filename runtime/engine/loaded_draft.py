"""A draft in compute memory: what the loader delivers and the decoder runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from runtime.engine.draft_file import HEAD, DraftParts, opened_draft
from runtime.engine.draft_net import DraftNet
from runtime.engine.malloc import release_free_memory, returned_when_freed
from runtime.engine.packing import pack_linears, weight_bytes
from runtime.errors import UserError


@dataclass(frozen=True)
class LoadedDraft:
    """A draft without a sequence; every user keeps its own cache.

    Attributes:
        name: The draft's name in its zoo.
        net: The network, packed where that is possible.
        vocab: Token id of every row of the head, ascending.
        weight_bytes: Memory of the weights.
    """

    name: str
    net: DraftNet
    vocab: tuple[int, ...]
    weight_bytes: int


def load_draft(
    path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32, target_folder: Path | None = None
) -> LoadedDraft:
    """Read a draft file, dequantise it, build the network and pack it.

    This goes tensor by tensor, the largest first, so that memory in between is little more than the draft itself; and
    the draft's memory goes back to the system the moment it is evicted.

    Args:
        path: The draft file.
        device: Torch device that the weights are brought to.
        dtype: What the draft runs in.
        target_folder: The target's folder, from which a recipe's weights are copied.

    Raises:
        UserError: If the file is missing, damaged or of another format, or a recipe's target is.
    """
    release_free_memory()  # of what made room for this draft
    with opened_draft(path, target_folder) as file, returned_when_freed():
        name, vocab = file.header.name, tuple(file.vocab.tolist())
        net = DraftNet(file.header.config, file.vocab).requires_grad_(False).eval()
        net.vocab = net.vocab.to(device)
        _refuse_unless_fitting(net, file)
        for parameter in file.names:
            _place(net, parameter, file.tensor(parameter).to(device=device, dtype=dtype))
    return LoadedDraft(name, net.to(device=device, dtype=dtype), vocab, weight_bytes(net))


def _path_of(parameter: str) -> str:
    """Where a draft file's parameter lies in the network."""
    return parameter if parameter == HEAD else f"body.{parameter}"


def _refuse_unless_fitting(net: DraftNet, file: DraftParts) -> None:
    needed = {name: tuple(tensor.shape) for name, tensor in net.weights().items()}
    found = {name: file.shape(name) for name in file.names}
    if needed != found:
        wrong = sorted(name for name in needed.keys() | found.keys() if needed.get(name) != found.get(name))
        raise UserError(
            f"draft '{file.header.name}': weights and configuration do not fit; distill it again "
            f"({', '.join(wrong[:3])}: expected {needed.get(wrong[0])}, got {found.get(wrong[0])})"
        )


def _place(net: DraftNet, parameter: str, tensor: torch.Tensor) -> None:
    """Put a weight where it belongs, and pack its layer at once where that is possible."""
    path, _, leaf = _path_of(parameter).rpartition(".")
    module = net.get_submodule(path)
    setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))
    if leaf == "weight" and type(module) is nn.Linear:
        alone = nn.ModuleDict({"layer": module})
        pack_linears(alone)
        parent, _, name = path.rpartition(".")
        setattr(net.get_submodule(parent), name, alone["layer"])


def load_with_one_thread() -> None:
    """For the loader's thread: one CPU thread for what it computes.

    A second OpenMP team beside the decoder's would make both wait for each other at every barrier.
    """
    torch.set_num_threads(1)
