"""A checkpoint is whole or refused; the folder keeps two and passes damaged ones over."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

import agents.checkpoints.file
from agents.checkpoints.file import ABOUT, HASH, Checkpoint, read_checkpoint, write_checkpoint
from agents.checkpoints.folder import FOLDER, CheckpointFolder, find_checkpoint
from runtime.errors import UserError


def made(decisions: int = 7, **state: Any) -> Checkpoint:
    return Checkpoint(decisions, 100, {"seed": 1}, {"traces": "abc"}, "code", {"torch": "2"}, state)


def test_a_file_comes_back_and_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    written = made(weights=torch.arange(4.0), rows=np.zeros((0, 5)), number=3)
    write_checkpoint(path, written)
    read = read_checkpoint(path)
    assert torch.equal(read.state.pop("weights"), torch.arange(4.0))
    assert read.state.pop("rows").shape == (0, 5)
    assert read == made(number=3)
    with safe_open(str(path), framework="np") as file:
        assert set(file.keys()) == {"/weights", "/rows"}
    assert [each.name for each in tmp_path.iterdir()] == ["one.safetensors"]


def test_numbers_as_keys_of_a_configuration_stay_numbers(tmp_path: Path) -> None:
    """Those of a device built from ratios: costs by width."""
    path = tmp_path / "one.safetensors"
    write_checkpoint(path, replace(made(), config={"device": {"verify": {1: 1.0, 9: 1.3}, "budget": (0.5, 2.0)}}))
    assert read_checkpoint(path).config == {"device": {"verify": {1: 1.0, 9: 1.3}, "budget": (0.5, 2.0)}}


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "one.safetensors"
    write_checkpoint(path, made(weights=torch.arange(400.0)))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match="is not a whole checkpoint"):
        read_checkpoint(path)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    write_checkpoint(path, made(weights=torch.arange(400.0)))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="changed after it was written"):
        read_checkpoint(path)


def test_another_schema_another_file_and_no_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.safetensors"
    with pytest.raises(UserError, match="no checkpoint at"):
        read_checkpoint(path)
    save_file({"x": np.zeros(1)}, path)
    with pytest.raises(UserError, match=f"not a whole checkpoint.*{ABOUT}"):
        read_checkpoint(path)
    save_file({"x": np.zeros(1)}, path, {ABOUT: "{", HASH: ""})
    with pytest.raises(UserError, match="not a whole checkpoint"):
        read_checkpoint(path)
    monkeypatch.setattr(agents.checkpoints.file, "SCHEMA", 2)
    write_checkpoint(path, made())
    monkeypatch.undo()
    with pytest.raises(UserError, match="expected a checkpoint of schema 1, got 2"):
        read_checkpoint(path)


def test_the_last_two_are_kept_and_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for decisions in (8, 900, 1000):
        folder.write(made(decisions))
    assert [int(path.stem) for path in folder.paths()] == [900, 1000]
    assert find_checkpoint(tmp_path).checkpoint.decisions == 1000
    newest = folder.paths()[-1]
    newest.write_bytes(newest.read_bytes()[:50])
    found = find_checkpoint(tmp_path / FOLDER)
    assert (found.run, found.checkpoint.decisions) == (tmp_path, 900)
    assert len(found.passed_over) == 1 and newest.name in found.passed_over[0]
    with pytest.raises(UserError, match="not a whole checkpoint"):
        find_checkpoint(newest)
    folder.paths()[0].unlink()
    with pytest.raises(UserError, match=r"no checkpoint to resume from in .*not a whole checkpoint.*resume="):
        find_checkpoint(tmp_path)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.write(made(8))

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        folder.write(made(9))
    assert [path.name for path in folder.folder.iterdir()] == [folder.paths()[0].name]
    assert find_checkpoint(tmp_path).checkpoint.decisions == 8


def test_cleaning_removes_another_future_and_what_dead_writers_left(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for decisions in (8, 16):
        folder.write(made(decisions))
    dead = folder.folder / ".000000000024.safetensors.999999999.tmp"
    alive = folder.folder / f".000000000024.safetensors.{os.getpid()}.tmp"
    for aside in (dead, alive):
        aside.write_bytes(b"half")
    assert find_checkpoint(tmp_path).checkpoint.decisions == 16
    folder.clean(8)
    assert sorted(path.name for path in folder.folder.iterdir()) == sorted([alive.name, folder.paths()[0].name])
    assert [int(path.stem) for path in folder.paths()] == [8]
