"""Safetensors files that are read, not mapped."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import save_file

from runtime.engine.tensor_file import DTYPES, DamagedFileError, opened

TENSORS = {
    "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "bytes": torch.tensor([-3, 5], dtype=torch.int8),
    "one": torch.tensor(2.5, dtype=torch.bfloat16),
    "none": torch.empty(0, 7),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"who": "me"})
    return tmp_path / "a.safetensors"


def test_reads_what_the_library_writes(path: Path) -> None:
    with opened(path) as file:
        assert sorted(file.keys()) == sorted(TENSORS) and file.metadata() == {"who": "me"}
        for name, tensor in TENSORS.items():
            got = file.get_tensor(name)
            assert file.shape(name) == tuple(tensor.shape)
            assert got.dtype is tensor.dtype and torch.equal(got, tensor)
        with pytest.raises(KeyError, match="nothing"):
            file.get_tensor("nothing")


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1]).to(dtype)
    save_file({"t": tensor}, tmp_path / "b", metadata=None)
    with opened(tmp_path / "b") as file:
        assert torch.equal(file.get_tensor("t"), tensor) and file.metadata() == {}


def test_what_was_read_outlives_the_file(path: Path) -> None:
    """A mapped tensor would end the process here (SIGBUS)."""
    with opened(path) as file:
        matrix = file.get_tensor("matrix")
    os.truncate(path, 0)
    assert torch.equal(matrix, TENSORS["matrix"])


def test_a_file_that_is_cut_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "large"
    save_file({"matrix": torch.zeros(500, 500)}, path)
    with pytest.raises(DamagedFileError, match="ends within 'matrix'"), opened(path) as file:
        os.truncate(path, 500_000)
        file.get_tensor("matrix")


def test_only_the_file_with_the_hash_is_read(path: Path) -> None:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with opened(path, sha256) as file:
        assert torch.equal(file.get_tensor("matrix"), TENSORS["matrix"])
        path.rename(path.with_name("elsewhere"))  # the open file is the same
    save_file({**TENSORS, "matrix": TENSORS["matrix"] + 1}, path)
    with pytest.raises(DamagedFileError, match=f"expected the hash {sha256[:12]}…, got "), opened(path, sha256):
        raise AssertionError("opened")


def test_a_file_that_is_written_to_behind_its_hash_is_refused(path: Path) -> None:
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    with pytest.raises(DamagedFileError, match="written to while it was read"), opened(path, sha256):
        path.write_bytes(content[:-1] + b"x")
        os.utime(path, (1e9, 1e9))


@settings(deadline=None, max_examples=200)
@given(cut=st.integers(0, 400), flip=st.integers(0, 399), by=st.integers(1, 255))
def test_no_damage_is_more_than_an_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, by: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a"
    save_file(TENSORS, path)
    content = bytearray(path.read_bytes()[:cut])
    if flip < len(content):
        content[flip] ^= by
    path.write_bytes(content)
    try:
        with opened(path) as file:
            for name in file.keys():
                file.get_tensor(name)
    except DamagedFileError:
        pass


@pytest.mark.parametrize(
    "facts",
    [
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]},
        {"shape": [2]},
        [],
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path: Path, facts: object) -> None:
    header = json.dumps({"t": facts}).encode()
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(DamagedFileError, match="header cannot be read"), opened(tmp_path / "a"):
        raise AssertionError("opened")


def test_a_header_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    header = b"[" * 200_000
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedFileError, match="header cannot be read"), opened(tmp_path / "a"):
        raise AssertionError("opened")
