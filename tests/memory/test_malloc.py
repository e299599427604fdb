"""What is allocated so that it goes back to the system when it is freed."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.watching import watch
from runtime import live
from runtime.engine import malloc
from runtime.engine.kv_cache import GrowingCache
from runtime.engine.kv_state import KVState
from runtime.engine.malloc import (
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    MAPPED_BYTES,
    POPULATED_BYTES,
    USUAL_MAPPED_BYTES,
)
from runtime.engine.native.blocks import Form, blocks_of
from runtime.engine.native.library import kernels
from runtime.engine.native.linear import BlockLinear
from runtime.engine.opening import open_target
from runtime.engine.tensor_file import opened
from runtime.errors import UserError
from tests.memory.heap import HELD, SIZE, come_and_go
from tests.tiny_zoo import TinyZoo

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads RssAnon from /proc, which is Linux's")


class Library:
    """The C library, as far as it is asked.

    Attributes:
        limits: What was set last, by parameter.
        trims: The limit above which blocks were mapped whenever free memory was given back.
    """

    def __init__(self) -> None:
        self.limits: dict[int, int] = {}
        self.trims: list[int | None] = []

    def mallopt(self, parameter: int, value: int) -> None:
        self.limits[parameter] = value

    def malloc_trim(self, pad: int) -> None:
        self.trims.append(self.limits.get(M_MMAP_THRESHOLD))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    one = Library()
    monkeypatch.setattr(malloc, "_glibc", lambda: one)
    return one


def test_a_target_is_made_so_that_no_holes_are_left(
    tiny_zoo: TinyZoo, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def watched(*arguments: Any) -> Any:
        limits.append(library.limits[M_MMAP_THRESHOLD])
        return open_target(*arguments)

    monkeypatch.setattr(live, "open_target", watched)
    live.open_models(tiny_zoo.zoo, threads=1)
    assert limits == [MAPPED_BYTES]
    assert library.limits[M_MMAP_THRESHOLD] == USUAL_MAPPED_BYTES  # a long prefill would pay for it
    assert library.trims == [USUAL_MAPPED_BYTES]


def test_the_limits_are_the_usual_ones_again_behind_a_target_that_cannot_be_opened(
    tiny_zoo: TinyZoo, library: Library, tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        live.open_models(tiny_zoo.zoo, source=str(tmp_path), threads=1)
    assert library.limits[M_MMAP_THRESHOLD] == USUAL_MAPPED_BYTES and library.limits[M_TRIM_THRESHOLD] > 0


def test_nothing_is_done_where_the_library_has_no_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malloc, "_glibc", lambda: None)
    malloc.release_free_memory()
    with malloc.returned_when_freed():
        pass


# -- memory of its own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 1 << 15), (1, 4, 1 << 15), (7,), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
def test_a_lasting_tensor_is_a_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ones = torch.ones(shape, dtype=dtype)
    new = malloc.new_lasting(shape, dtype).copy_(ones)
    assert (new.shape, new.dtype, new.is_contiguous()) == (ones.shape, dtype, True)
    assert torch.equal(new, ones) and torch.equal(malloc.lasting(ones), ones)


@linux
@pytest.mark.parametrize(
    ("size", "together"), [(MAPPED_BYTES, True), (POPULATED_BYTES, True), (POPULATED_BYTES + 1, False)]
)
def test_pages_of_what_is_written_at_once_are_asked_for_together_up_to_a_size(
    size: int, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []
    mapped = mmap.mmap

    def watched(file: int, length: int, **given: int) -> mmap.mmap:
        flags.append(given["flags"])
        return mapped(file, length, **given)

    monkeypatch.setattr("runtime.engine.malloc.mmap.mmap", watched)
    malloc.new_lasting((size,), torch.uint8, whole=True)
    malloc.new_lasting((size,), torch.uint8)
    assert [bool(flag & mmap.MAP_POPULATE) for flag in flags] == [together, False]


def test_a_copy_is_of_what_was_there_and_contiguous() -> None:
    rows = torch.arange(1 << 16).view(256, 256)
    copy = malloc.lasting(rows.t())
    assert copy.is_contiguous() and torch.equal(copy, rows.t())
    assert copy.data_ptr() != rows.data_ptr() != malloc.lasting(rows).data_ptr()
    small = torch.arange(4)
    assert malloc.lasting(small).data_ptr() == small.data_ptr()


def test_where_nothing_can_be_mapped_the_allocator_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("too many mappings")

    monkeypatch.setattr(mmap, "mmap", refuse)
    assert malloc.new_lasting((2, MAPPED_BYTES), torch.uint8).fill_(3).sum() == 6 * MAPPED_BYTES


def has_own_memory(*tensors: torch.Tensor) -> bool:
    """The allocator puts a header before a block, so none of its blocks begins with a page."""
    return all(tensor.data_ptr() % mmap.PAGESIZE == 0 for tensor in tensors)


def test_what_comes_and_goes_in_a_server_has_memory_of_its_own(tmp_path: Path) -> None:
    cache = GrowingCache()
    for index in range(3):
        cache.update(torch.ones(1, 4, 9, 64), torch.ones(1, 4, 9, 64), index)
    layers = [layer for index in range(3) if (layer := cache.held(index)) is not None]
    assert len(layers) == 3 and has_own_memory(*(part for layer in layers for part in layer.first(9)))
    assert has_own_memory(*(KVState.copy_of([(torch.ones(1, 4, 256, 64),) * 2]).buffer for _ in range(3)))
    names = {name: torch.ones(MAPPED_BYTES) for name in "abc"}
    save_file(names, tmp_path / "file")
    with opened(tmp_path / "file") as file:
        assert has_own_memory(*(file.get_tensor(name) for name in names))


@pytest.mark.skipif(kernels() is None, reason="needs a compiler")
def test_compressed_weights_have_memory_of_their_own() -> None:
    weight = torch.randn(512, 2048, generator=torch.Generator().manual_seed(0))
    for form in Form:
        layer = BlockLinear(blocks_of(weight, form))
        layer(weight[:1])
        assert layer._panels is not None and has_own_memory(layer._panels.codes)


@linux
def test_what_is_gone_holds_nothing_and_a_view_all_of_it() -> None:
    readings = watch(come_and_go)
    for held, view, gone in (readings[:3], readings[3:]):
        assert held.now - gone.now == pytest.approx(HELD * SIZE, rel=0.1)
        assert view.now - gone.now == pytest.approx(SIZE, rel=0.2)
