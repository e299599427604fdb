"""Attention over a cache: torch's numbers, and the same bits however many queries stand beside one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from runtime.engine.native.library import kernels
from tests.engine.native.older import OTHERS

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler")

HEADS, GROUPS, CAPACITY = 6, 2, 256


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Attention:
    """A cache of one layer, and calls of the kernel behind it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.keys, self.values = normal(GROUPS, CAPACITY, size), normal(GROUPS, CAPACITY, size, seed=1)

    def __call__(self, qkv: torch.Tensor, length: int, threads: int) -> torch.Tensor:
        rows = len(qkv)
        cosine, sine = torch.ones(rows, self.size), torch.zeros(rows, self.size)
        seen = torch.empty(rows, HEADS * self.size)
        kernels().attend(
            qkv.data_ptr(), cosine.data_ptr(), sine.data_ptr(), self.keys.data_ptr(), self.values.data_ptr(),
            seen.data_ptr(), rows, length, CAPACITY, HEADS, GROUPS, self.size, self.size**-0.5, threads,
        )  # fmt: skip
        return seen


@pytest.mark.parametrize("size", [16, 48, 64, 128])
@pytest.mark.parametrize("length", [0, 61, 150])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_queries_are_torchs(size: int, length: int, threads: int) -> None:
    """More queries than the kernel takes at once, from several heads' keys in one thread's share."""
    compare_with_torch(size, length, threads)


@pytest.mark.parametrize("older", OTHERS, indirect=True)
def test_an_older_processor_looks_at_the_same(older: None) -> None:
    compare_with_torch(48, 61, 2)


def compare_with_torch(size: int, length: int, threads: int) -> None:
    rows, attention = 40, Attention(size)
    qkv = normal(rows, (HEADS + 2 * GROUPS) * size, seed=2)
    seen = attention(qkv, length, threads).view(rows, HEADS, size).transpose(0, 1)
    queries = qkv.view(rows, HEADS + 2 * GROUPS, size).transpose(0, 1)[:HEADS]
    keys, values = (each[:, : length + rows].repeat_interleave(HEADS // GROUPS, dim=0)
                    for each in (attention.keys, attention.values))  # fmt: skip
    later = torch.arange(length + rows)[None, :] > length + torch.arange(rows)[:, None]
    expected = functional.scaled_dot_product_attention(
        queries.double(), keys.double(), values.double(), attn_mask=~later
    )
    torch.testing.assert_close(seen.double(), expected, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("size", [48, 64])
def test_a_query_does_not_depend_on_the_others(size: int) -> None:
    rows, length, attention = 23, 57, Attention(size)
    qkv = normal(rows, (HEADS + 2 * GROUPS) * size, seed=2)
    whole = attention(qkv, length, 2)
    for row in range(rows):
        assert torch.equal(attention(qkv[row : row + 1], length + row, 1)[0], whole[row])


def test_keys_behind_the_last_one_are_not_read() -> None:
    """A buffer's rest was never written."""
    attention, qkv = Attention(64), normal(3, (HEADS + 2 * GROUPS) * 64, seed=2)
    expected = attention(qkv, 70, 2)
    attention.keys[:, 73:] = attention.values[:, 73:] = float("nan")
    assert torch.equal(attention(qkv, 70, 2), expected)


@pytest.mark.parametrize("length", [3, 63, 100])
def test_a_query_that_is_not_a_number_is_not_hidden(length: int) -> None:
    attention, qkv = Attention(64), normal(3, (HEADS + 2 * GROUPS) * 64, seed=2)
    qkv[1, 0] = float("nan")  # of the first head
    seen = attention(qkv, length, 1)
    assert not torch.isfinite(seen[1, :64]).any()
    assert torch.isfinite(seen[1, 64:]).all() and torch.isfinite(seen[[0, 2]]).all()
