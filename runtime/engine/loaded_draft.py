"""A draft in compute memory: what the loader delivers and the decoder runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.engine.draft_file import read_draft
from runtime.engine.draft_net import DraftNet, build_draft_net
from runtime.engine.packing import pack_linears, weight_bytes


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


def load_draft(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> LoadedDraft:
    """Read a draft file, dequantise it, build the network and pack it.

    Memory in between is the network plus one layer: the file's tensors become the network's, and are freed one by one
    as they are packed.

    Raises:
        UserError: If the file is missing, damaged or of another format.
    """
    file = read_draft(path)
    name, vocab = file.header.name, tuple(file.vocab.tolist())
    net = build_draft_net(file)
    del file
    net.requires_grad_(False).to(device=device, dtype=dtype)
    pack_linears(net)
    return LoadedDraft(name, net, vocab, weight_bytes(net))


def load_with_one_thread() -> None:
    """For the loader's thread: one CPU thread for what it computes.

    A second OpenMP team beside the decoder's would make both wait for each other at every barrier.
    """
    torch.set_num_threads(1)
