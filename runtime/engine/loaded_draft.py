"""A draft in compute memory: what the loader delivers and the decoder runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from runtime.engine.draft_file import HEAD, DraftParts, opened_draft
from runtime.engine.draft_net import DraftNet
from runtime.engine.draft_sequence import TorchSequence
from runtime.engine.malloc import release_free_memory, returned_when_freed
from runtime.engine.native.blocks import BLOCK, of_rows
from runtime.engine.native.install import compress_linears, install, usable
from runtime.engine.native.linear import BlockLinear
from runtime.engine.native.modules import NarrowMask
from runtime.engine.native.products import EXACT, Products
from runtime.engine.native.trial import verdicts_of
from runtime.engine.packing import pack_linears, weight_bytes
from runtime.engine.upload import Upload
from runtime.errors import UserError


@dataclass(frozen=True)
class LoadedDraft:
    """Implements ``Draft`` in torch.

    Attributes:
        name: The draft's name in its zoo.
        net: The network, its weights compressed or packed where that is possible.
        vocab: Token id of every row of the head, ascending.
        weight_bytes: Memory of the weights.
    """

    name: str
    net: DraftNet
    vocab: tuple[int, ...]
    weight_bytes: int

    def sequence(self) -> TorchSequence:
        """A new, empty sequence."""
        return TorchSequence(self.net)


def load_draft(
    path: Path,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    target_folder: Path | None = None,
    sha256: str = "",
    products: Products = EXACT,
) -> LoadedDraft:
    """Read a draft file and build the network, which may be used at once when this returns.

    Where there are compiled kernels, matrices stay in the 8 bit of the file; else they are dequantised and packed.
    This goes tensor by tensor, the largest first, so that memory in between is little more than the draft itself; and
    the draft's memory goes back to the system the moment it is evicted.

    Args:
        path: The draft file.
        device: Torch device that the weights are brought to.
        dtype: What the draft runs in.
        target_folder: The target's folder, from which a recipe's weights are copied.
        sha256: Hash (hex) that the file must have; empty = any.
        products: How its products are computed, where there are kernels.

    Raises:
        UserError: If the file is missing, damaged, another one or of another format, or a recipe's target is.
    """
    release_free_memory()  # of what made room for this draft
    upload = Upload(device)
    with opened_draft(path, target_folder, sha256) as file, returned_when_freed(), upload.running():
        name, vocab = file.header.name, tuple(file.vocab.tolist())
        net = DraftNet(file.header.config, file.vocab).requires_grad_(False).eval()
        net.vocab = net.vocab.to(device)
        _refuse_unless_fitting(net, file)
        compressed = device == "cpu" and dtype == torch.float32 and usable()
        for parameter in file.names:
            if not (compressed and _compressed(net, parameter, file)):
                _place(net, parameter, upload.send(file.tensor(parameter), dtype))
        if compressed:
            install(net, products, verdicts_of(_kind(file, products)))
            net.narrow = NarrowMask(net.body)
        net.to(device=device, dtype=dtype)
        upload.deliver(net)
    return LoadedDraft(name, net, vocab, weight_bytes(net))


def _kind(file: DraftParts, products: Products) -> str:
    """Of drafts that differ in nothing but their weights."""
    return json.dumps([file.header.config, repr(products)], sort_keys=True)


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


def _compressed(net: DraftNet, parameter: str, file: DraftParts) -> bool:
    """Put a matrix of 8 bit where it belongs as it is; whether it is one."""
    path, _, leaf = _path_of(parameter).rpartition(".")
    module = net.get_submodule(path)
    if leaf != "weight" or type(module) is not nn.Linear or module.in_features % BLOCK:
        return False
    matrix = file.quantised(parameter)
    if matrix is None:
        return False
    parent, _, name = path.rpartition(".")
    setattr(net.get_submodule(parent), name, BlockLinear(of_rows(matrix.values, matrix.scale), module.bias))
    return True


def _place(net: DraftNet, parameter: str, tensor: torch.Tensor) -> None:
    """Put a weight where it belongs; compress or pack its layer at once where that is possible."""
    path, _, leaf = _path_of(parameter).rpartition(".")
    module = net.get_submodule(path)
    setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))
    if leaf == "weight" and type(module) is nn.Linear:
        alone = nn.ModuleDict({"layer": module})
        if not compress_linears(alone):
            pack_linears(alone)
        parent, _, name = path.rpartition(".")
        setattr(net.get_submodule(parent), name, alone["layer"])


def load_with_one_thread() -> None:
    """For the loader's thread: one CPU thread for what it computes.

    A second OpenMP team beside the decoder's would make both wait for each other at every barrier.
    """
    torch.set_num_threads(1)
