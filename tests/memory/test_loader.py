"""The background loader with real files: decoding goes on, failures are told, nothing crashes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.engine.draft_file import save_draft
from runtime.engine.loaded_draft import LoadedDraft, load_draft
from runtime.memory.base import Loaded
from runtime.memory.loader import ThreadLoader
from tests.tiny import decoder, draft_parts, drafts, plain_text, request


def saved(path: Path, kind: str = "sometimes") -> Path:
    parts = draft_parts(kind)
    save_draft(path, parts.header, parts.vocab, parts.tensors)
    return path


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def finished(loader: ThreadLoader, draft: int) -> Loaded:
    loader.wait(draft)
    (loaded,) = loader.poll()
    return loaded


def test_loads_a_draft_that_decodes(tmp_path: Path) -> None:
    loader = ThreadLoader([saved(tmp_path / "a.draft.safetensors", "always"), None], load_draft)
    loader.start(0)
    loaded = finished(loader, 0)
    assert loaded.error is None
    assert loaded.seconds > 0
    assert isinstance(loaded.payload, LoadedDraft)
    live = decoder()
    text = [live.begin(request(), 0, ()).token]
    while len(text) < 40:
        text.extend(live.round(0, loaded.payload, 4, 0.0).tokens)
    assert tuple(text) == plain_text()
    loader.close()


def test_rounds_go_on_while_a_load_is_running(gate: threading.Event) -> None:
    def slow(path: Path) -> str:
        gate.wait(30)
        return path.name

    loader = ThreadLoader([Path("a")], slow, expected_s=[0.02])
    live = decoder()
    text = [live.begin(request(), 0, ()).token]
    loader.start(0)
    while len(text) < 40:
        assert loader.poll() == []
        text.extend(live.round(2, drafts()[2], 2, 0.0).tokens)
    assert tuple(text) == plain_text()
    time.sleep(0.03)
    assert loader.fraction(0) == 0.99  # late, but not there
    gate.set()
    assert finished(loader, 0).payload == "a"
    assert loader.fraction(0) == 0.0
    loader.close()


def test_loads_are_done_one_after_another_in_order(gate: threading.Event) -> None:
    running: list[str] = []

    def read(path: Path) -> str:
        gate.wait(30)
        running.append(path.name)
        return path.name

    loader = ThreadLoader([Path("a"), Path("b"), Path("c")], read)
    for index in (2, 0, 1, 2):  # the second order of 2 is the first one
        loader.start(index)
    gate.set()
    loader.wait(1)
    assert [loaded.draft for loaded in loader.poll()] == [2, 0, 1]
    assert running == ["c", "a", "b"]
    loader.close()


def test_wait_stalls_until_the_draft_is_there() -> None:
    def slow(_: Path) -> str:
        time.sleep(0.1)
        return "there"

    loader = ThreadLoader([Path("a")], slow)
    started_s = time.perf_counter()
    loader.start(0)
    loaded = finished(loader, 0)
    assert time.perf_counter() - started_s >= 0.1
    assert loaded.seconds >= 0.1
    loader.wait(0)  # nothing on its way: returns at once
    loader.close()


@pytest.mark.parametrize("keep", [0, 7, 300, 5000])
def test_truncated_file_is_an_error_not_a_crash(tmp_path: Path, keep: int) -> None:
    whole = saved(tmp_path / "a.draft.safetensors")
    broken = tmp_path / "b.draft.safetensors"
    broken.write_bytes(whole.read_bytes()[:keep])
    loader = ThreadLoader([whole, broken, tmp_path / "none"], load_draft)
    for index, expected in ((1, "distill"), (2, "none"), (0, None)):
        loader.start(index)
        loaded = finished(loader, index)
        if expected is None:
            assert loaded.error is None  # the thread lives on
        else:
            assert loaded.payload is None
            assert loaded.error is not None and expected in loaded.error
    loader.close()


def test_unexpected_failure_is_told() -> None:
    def read(path: Path) -> str:
        raise MemoryError("no room")

    loader = ThreadLoader([Path("a")], read)
    loader.start(0)
    error = finished(loader, 0).error
    assert error is not None and "MemoryError: no room" in error
    loader.close()


def test_closing() -> None:
    loader = ThreadLoader([Path("a"), None], lambda path: path)
    with pytest.raises(ValueError, match="no weights"):
        loader.start(1)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        loader.start(0)
