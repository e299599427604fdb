"""Linear layers with weights in 8 bit: half the memory of bf16, and the traffic that decides the time of a forward.

Every row of a weight has a scale of its own; activations stay in bf16 and sums in fp32. Measured, one thread of an
AVX-512 Xeon with bf16 units, CPU microseconds of one product of a 1536 x 576 weight (lower quartile of 20):

    rows                         1      2      5      9      33
    fp32                        146    156    292    405     700
    bf16                        167    213    278    375     947
    int8 kernel, bf16 rows       73    101    180    368    1223
    int8 kernel, fp32 rows     1120   2161   6133  12270   42985
    int8 to fp32, product       354    355    523    609     995

Hence int8 computes in bf16 wherever there are no compiled kernels (``runtime.engine.native``; with them products are
of integers or fp32, and layers here are those whose width is no multiple of 32): with torch's kernel for the widths of
decoding and by converting for those of a prefill. On CPU both sum in fp32 and round once, so a row comes out the same
at any width but for a rounding now and then; two roundings in the wide product moved logits of a small model by 4.7
against its narrow ones.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

KERNEL_ROWS = 32
"""Widest input the kernel is used for."""


class Int8Linear(nn.Module):
    """``nn.Linear`` (or GPT-2's ``Conv1D``) with a weight in 8 bit; inference only.

    Args:
        linear: The layer it stands for; its weight may be freed afterwards.
    """

    def __init__(self, linear: nn.Linear | Conv1D) -> None:
        super().__init__()
        source = linear.weight.detach()
        rows = (source.t() if isinstance(linear, Conv1D) else source).float()  # (out, in)
        tiny = torch.finfo(source.dtype).tiny
        scale = (rows.abs().amax(dim=1) / 127).clamp(min=tiny).to(source.dtype)  # rounded before it is divided by
        self.out_features, self.in_features = rows.shape
        eighths = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8).contiguous()
        self.quantised = nn.Parameter(eighths, requires_grad=False)  # a parameter: counted with the weights
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (..., in_features) to (..., out_features)."""
        flat = rows.reshape(-1, self.in_features)
        result: torch.Tensor
        if flat.device.type != "cpu":
            result = functional.linear(flat, self.quantised.to(flat.dtype)) * self.scale
        elif flat.dtype == torch.bfloat16 and flat.shape[0] <= KERNEL_ROWS:
            result = torch._weight_int8pack_mm(flat.contiguous(), self.quantised, self.scale)
        else:  # rounded once behind an fp32 sum, as the kernel does
            result = functional.linear(flat.float(), self.dequantised()).to(flat.dtype)
        if self.bias is not None:
            result = result + self.bias
        return result.reshape(*rows.shape[:-1], self.out_features)

    def dequantised(self) -> torch.Tensor:
        """The weight it computes with, float32, shape (out_features, in_features)."""
        return self.quantised.float() * self.scale.float()[:, None]


@torch.no_grad()
def quantise_linears(module: nn.Module) -> int:
    """Replace every linear layer in ``module`` by one in 8 bit, and free its weight.

    The embedding stays as it is. A head tied to it gets a copy in 8 bit of its own.

    Returns:
        Layers replaced.
    """
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear | Conv1D) and type(child) in (nn.Linear, Conv1D):
                setattr(parent, name, Int8Linear(child))
                replaced += 1
    return replaced
