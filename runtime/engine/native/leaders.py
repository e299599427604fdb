"""The best token of each position, and how far it is ahead: one pass over the logits instead of two searches.

Answers go into plain C numbers: every call into torch costs as much as the search, begun behind a forward.
"""

from __future__ import annotations

from ctypes import addressof, c_float, c_int64
from typing import Any

import torch

from runtime.engine.native.library import kernels


def leaders(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """The largest logit of each row and its lead.

    Args:
        logits: Float32, shape (n, vocab), at least two tokens.

    Returns:
        Token ids, the first of equals, and the best logit less the second best, NaN where a logit is; n of each.
    """
    library = _library(logits)
    if library is None:
        top = logits.topk(2, dim=-1).values
        return logits.argmax(dim=-1).tolist(), (top[:, 0] - top[:, 1]).tolist()
    logits = logits.contiguous()
    rows, vocab = logits.shape
    best, ahead = (c_int64 * rows)(), (c_float * rows)()
    library.lead(logits.data_ptr(), rows, vocab, addressof(best), addressof(ahead))
    return best[:], ahead[:]


def likeliest(row: torch.Tensor) -> tuple[int, float]:
    """The place of the largest of float32 logits (vocab,), and its softmax."""
    library = _library(row)
    if library is None:
        top = torch.max(row, dim=-1)
        return int(top.indices), float(torch.exp(top.values - torch.logsumexp(row, dim=-1)))
    row = row.contiguous()
    best, ahead, share = c_int64(), c_float(), c_float()
    library.lead(row.data_ptr(), 1, len(row), addressof(best), addressof(ahead))
    library.share(row.data_ptr(), 1, len(row), addressof(best), addressof(share))
    return best.value, share.value


def _library(logits: torch.Tensor) -> Any:
    """The kernels, where they can read these logits."""
    return kernels() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
