"""Weights side by side: they are tensors like others, and go when the last of their slab goes."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref

import pytest
import torch

from runtime.engine import slabs
from runtime.engine.slabs import LINE, SLAB_BYTES, Slabs, new_weights, side_by_side

large_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages to ask for")


@large_pages
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_tensors_lie_behind_each_other_and_do_not_overlap(dtype: torch.dtype) -> None:
    with side_by_side():
        made = [new_weights((3, 5 + i), dtype).fill_(i) for i in range(20)]
    places = [tensor.data_ptr() for tensor in made]
    assert all(place % LINE == 0 for place in places)
    assert places[-1] - places[0] < 20 * (12 * 5 * 4 + LINE)
    assert all(torch.equal(tensor, torch.full((3, 5 + i), i, dtype=dtype)) for i, tensor in enumerate(made))


@large_pages
def test_what_does_not_fit_begins_a_new_slab() -> None:
    taken = Slabs()
    first, large = taken.take((7,), torch.uint8), taken.take((SLAB_BYTES + 1,), torch.uint8)
    large[-1] = 1
    assert first.shape == (7,) and large.shape == (SLAB_BYTES + 1,) and large[-1] == 1


@large_pages
def test_a_slab_goes_with_its_last_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(mmap.mmap):
        """One that can be watched."""

    made: list[weakref.ref[mmap.mmap]] = []

    def mapped(size: int) -> mmap.mmap:
        slab = Watched(-1, size)
        made.append(weakref.ref(slab))
        return slab

    monkeypatch.setattr(slabs, "_mapped", mapped)
    with side_by_side():
        first, second = new_weights((4,), torch.float32), new_weights((4,), torch.float32)
    del first
    gc.collect()
    assert len(made) == 1 and made[0]() is not None
    del second
    gc.collect()
    assert made[0]() is None


@large_pages
def test_it_is_this_threads_and_ends_with_the_block() -> None:
    size = (SLAB_BYTES // 64,)
    places: dict[str, int] = {}

    def elsewhere() -> None:
        places["other"] = new_weights(size, torch.uint8).data_ptr()

    with side_by_side():
        one = new_weights(size, torch.uint8)
        with side_by_side():
            inner = new_weights(size, torch.uint8)
        two = new_weights(size, torch.uint8)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    behind = new_weights(size, torch.uint8)
    assert two.data_ptr() == one.data_ptr() + size[0]
    assert not one.data_ptr() <= inner.data_ptr() < one.data_ptr() + SLAB_BYTES
    assert not one.data_ptr() <= behind.data_ptr() < one.data_ptr() + SLAB_BYTES
    assert not one.data_ptr() <= places["other"] < one.data_ptr() + SLAB_BYTES


def test_without_room_for_a_slab_they_are_ordinary_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(size: int) -> mmap.mmap:
        raise OSError("no memory")

    monkeypatch.setattr(slabs, "_mapped", refused)
    with side_by_side():
        assert new_weights((2, 3), torch.float16).shape == (2, 3)


def test_nothing_needs_no_place() -> None:
    with side_by_side():
        assert new_weights((0, 3), torch.float32).shape == (0, 3)
