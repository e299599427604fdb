"""Linear layers with weights reordered once for narrow batches, on CPU in fp32.

``F.linear`` reads plain weights; for 4 to 16 rows, the width of a verification, its kernels lose up to a third against
a layout made for them. Measured, SmolLM2-135M, one thread of an AVX-512 Xeon, context 200, CPU milliseconds of a whole
forward, models interleaved (lower quartile of 9):

    width            1     2     3     5     9     17    65
    plain            69    66    73    100   131   128   245
    packed for 1     72    106   105   111   118   132   236
    packed for 4     73    73    77    87    95    109   230
    packed for 8     73    76    72    84    93    110   233

Width 1 costs 5% more, width 5 falls from 1.44 to 1.14 times width 1, and prefill costs the same: one layout serves all.
"""

from __future__ import annotations

import logging

import torch
from torch import nn

from runtime.engine.native.linear import BlockLinear

LOGGER = logging.getLogger(__name__)

PACK_WIDTH = 8
"""Rows the layout is made for. Other widths are computed with the same weights."""


class PackedLinear(nn.Module):
    """``nn.Linear`` with reordered weights; inference only.

    Args:
        linear: The layer it stands for; its weight may be freed afterwards.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACK_WIDTH)

    @property
    def packed_bytes(self) -> int:
        """Size of the reordered weight."""
        return self.in_features * self.out_features * 4

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (..., in_features) to (..., out_features)."""
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return result


def can_pack() -> bool:
    """Whether this build of torch has the operators."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


@torch.no_grad()
def pack_linears(module: nn.Module) -> int:
    """Replace every fp32 CPU ``nn.Linear`` in ``module`` by a packed one, and free its weight.

    A weight shared with another module (a head tied to the embedding) stays there, so it is held twice.

    Returns:
        Layers replaced; 0 where torch lacks the operators.
    """
    if not can_pack():
        return 0
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.float32 and child.weight.device.type == "cpu":
                try:
                    setattr(parent, name, PackedLinear(child))
                except (RuntimeError, NotImplementedError) as error:
                    LOGGER.info("layer %s stays unpacked (%s)", name, error)
                    continue
                replaced += 1
    return replaced


def weight_bytes(module: nn.Module) -> int:
    """Memory of a module's parameters, each counted once, and of its packed and compressed weights."""
    plain = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    return plain + sum(part.packed_bytes for part in module.modules() if isinstance(part, PackedLinear | BlockLinear))
