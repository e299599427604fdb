"""The best token of each position, and how far it is ahead: one pass over the logits instead of two searches."""

from __future__ import annotations

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
    best, ahead = torch.empty(len(logits), dtype=torch.long), torch.empty(len(logits))
    library.lead(logits.data_ptr(), *logits.shape, best.data_ptr(), ahead.data_ptr())
    return best.tolist(), ahead.tolist()


def likeliest(row: torch.Tensor) -> tuple[int, float]:
    """The place of the largest of float32 logits (vocab,), and its softmax."""
    library = _library(row)
    if library is None:
        top = torch.max(row, dim=-1)
        return int(top.indices), float(torch.exp(top.values - torch.logsumexp(row, dim=-1)))
    row = row.contiguous()
    best, share = torch.empty(1, dtype=torch.long), torch.empty(2)
    library.lead(row.data_ptr(), 1, len(row), best.data_ptr(), share.data_ptr())
    library.share(row.data_ptr(), 1, len(row), best.data_ptr(), share.data_ptr() + 4)
    return int(best), float(share[1])


def _library(logits: torch.Tensor) -> Any:
    """The kernels, where they can read these logits."""
    return kernels() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
