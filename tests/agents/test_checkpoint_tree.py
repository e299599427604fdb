"""What goes into a checkpoint's tree comes out of it, type for type and bit for bit."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
import torch

from agents.checkpoints.generators import random_state, restore_random, untouched_random
from agents.checkpoints.tree import pack, unpack


def test_a_tree_comes_back_with_its_types() -> None:
    tree = {
        "weights": {"layer.0": torch.tensor([[1.5, -0.0]]), "step": torch.tensor(3.0)},
        "state": {0: {"betas": (0.9, 0.999)}, 1: None},
        "$odd": [np.arange(3, dtype=np.uint32)[::-1], True, 2**127, "text", float("-inf")],
        "empty": (np.zeros((0, 5), dtype=np.int64), [], {}),
        "scalar": np.float32(0.1),
    }
    plain, arrays = pack(tree)
    back = unpack(plain, arrays)
    assert list(back) == list(tree)
    assert torch.equal(back["weights"]["layer.0"], torch.tensor([[1.5, -0.0]]))
    assert torch.signbit(back["weights"]["layer.0"][0, 1])
    assert back["weights"]["step"].shape == ()
    assert back["state"] == {0: {"betas": (0.9, 0.999)}, 1: None}
    assert back["$odd"][0].tolist() == [2, 1, 0] and back["$odd"][0].dtype == np.uint32
    assert back["$odd"][1:] == [True, 2**127, "text", float("-inf")]
    assert back["empty"][0].shape == (0, 5) and back["empty"][1:] == ([], {})
    assert back["scalar"] == float(np.float32(0.1))


def test_arrays_are_copied_both_ways() -> None:
    weights = torch.zeros(2)
    plain, arrays = pack([weights])
    weights += 1.0
    first, second = unpack(plain, arrays)[0], unpack(plain, arrays)[0]
    first += 5.0
    assert second.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [deque([1]), {1, 2}, object()])
def test_what_is_no_plain_value_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"/here/0: expected arrays, tensors and plain values, got"):
        pack({"here": [value]})


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))  # noqa: NPY002 - the one that is kept


def test_random_generators_go_on_where_they_stood() -> None:
    state = random_state()
    first = draws()
    with untouched_random():
        assert draws() != first
        torch.manual_seed(5)
    second = draws()
    restore_random(unpack(*pack(state)))
    assert (draws(), draws()) == (first, second)
