"""Stored KV on disk: what comes back is what went in, or nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from runtime.core import BLOCK_TOKENS
from runtime.engine.kv_state import KVState
from runtime.kv_folder import KVFolder
from runtime.memory.kv_store import KVStore
from runtime.memory.kv_tree import KVTree, Node

N = BLOCK_TOKENS


def state(seed: int, dtype: torch.dtype = torch.float32) -> KVState:
    torch.manual_seed(seed)
    return KVState.copy_of([(torch.randn(1, 2, N, 4).to(dtype), torch.randn(1, 2, N, 4).to(dtype)) for _ in range(3)])


def adopted(store: KVStore) -> int:
    store.adopt(0.0)
    return store.disk_bytes // store.block_bytes


def chain(blocks: int, dtype: torch.dtype = torch.float32) -> list[Node]:
    tree = KVTree()
    node, path = tree.root, []
    for index in range(blocks):
        node = tree.add(node, tuple(range(index * N, (index + 1) * N)))
        node.payload = state(index, dtype)
        path.append(node)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    disk, nodes = KVFolder(tmp_path, "model"), chain(3, dtype)
    disk.write(nodes)
    for node, read in zip(nodes, disk.read(nodes), strict=True):
        assert torch.equal(read.buffer, node.payload.buffer)
        assert read.shapes == node.payload.shapes
        for (keys, values), (keys_in, values_in) in zip(read.layers, node.payload.layers, strict=True):
            assert torch.equal(keys, keys_in) and torch.equal(values, values_in)


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "flipped inside":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif how == "deleted":
        path.unlink()


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped", "flipped inside", "deleted"])
def test_a_damaged_block_and_all_behind_it_are_not_used(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk, nodes = KVFolder(tmp_path, "model"), chain(4)
    disk.write(nodes)
    damage(disk.path(nodes[2]), how)
    with caplog.at_level(logging.WARNING):
        assert len(disk.read(nodes)) == 2
    assert "computed again" in caplog.text


def test_kv_of_another_model_is_not_seen(tmp_path: Path) -> None:
    KVFolder(tmp_path, "model").write(chain(2))
    other = KVFolder(tmp_path, "another")
    assert other.scan() == []
    assert other.read(chain(2)) == []


def test_a_file_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    disk, nodes = KVFolder(tmp_path, "model"), chain(2)
    disk.write(nodes)
    disk.path(nodes[0]).replace(disk.path(nodes[1]))
    assert disk.read(nodes[1:]) == []


def test_what_an_earlier_run_left_is_found(tmp_path: Path) -> None:
    disk, nodes = KVFolder(tmp_path, "model"), chain(3)
    disk.write(nodes)
    (disk.path(nodes[0]).parent / ".half.4194305.tmp").write_bytes(b"half")
    store = KVStore(1, KVFolder(tmp_path, "model"))
    assert adopted(store) == 3
    match = store.match(tuple(range(3 * N + 1)))
    assert (match.tokens, match.disk_tokens) == (3 * N, 3 * N)
    assert not list(tmp_path.rglob("*.tmp"))


def test_blocks_without_those_above_them_are_deleted(tmp_path: Path) -> None:
    disk, nodes = KVFolder(tmp_path, "model"), chain(3)
    disk.write(nodes)
    disk.path(nodes[1]).write_bytes(b"not a tensor file")
    store = KVStore(1, KVFolder(tmp_path, "model"))
    assert adopted(store) == 1
    assert [path.stem for path in tmp_path.rglob("*.safetensors")] == [nodes[0].name()]


def test_a_full_disk_is_told_and_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime.kv_folder.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        KVFolder(tmp_path, "model").write(chain(1))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a KV buffer of 8 numbers, got 7"):
        KVState.of_buffer(torch.zeros(7), [(1, 1, 2, 2), (1, 1, 2, 2)])
