"""The background loader with real files: decoding goes on, failures are told, nothing crashes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.engine.draft_file import save_draft
from runtime.engine.loaded_draft import LoadedDraft
from runtime.loading import FileWork
from runtime.memory.base import Job, Loaded, ReadKV, WriteKV
from runtime.memory.kv_tree import KVTree, Node
from runtime.memory.loader import ThreadLoader
from tests.tiny import decoder, draft_parts, drafts, plain_text, request


def saved(path: Path, kind: str = "sometimes") -> Path:
    parts = draft_parts(kind)
    save_draft(path, parts.header, parts.vocab, parts.tensors)
    return path


def reading(read: Callable[[Path], str], *names: str) -> Callable[[Job], str]:
    def work(job: Job) -> str:
        assert isinstance(job, int)
        return read(Path(names[job]))

    return work


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
    loader = ThreadLoader(FileWork([saved(tmp_path / "a.draft.safetensors", "always"), None]))
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

    loader = ThreadLoader(reading(slow, "a"), [0.02])
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

    loader = ThreadLoader(reading(read, "a", "b", "c"))
    for index in (2, 0, 1, 2):  # the second order of 2 is the first one
        loader.start(index)
    gate.set()
    loader.wait(1)
    assert [loaded.job for loaded in loader.poll()] == [2, 0, 1]
    assert running == ["c", "a", "b"]
    loader.close()


def test_wait_stalls_until_the_draft_is_there() -> None:
    def slow(_: Path) -> str:
        time.sleep(0.1)
        return "there"

    loader = ThreadLoader(reading(slow, "a"))
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
    loader = ThreadLoader(FileWork([whole, broken, tmp_path / "none"]))
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

    loader = ThreadLoader(reading(read, "a"))
    loader.start(0)
    error = finished(loader, 0).error
    assert error is not None and "MemoryError: no room" in error
    loader.close()


def test_closing() -> None:
    loader = ThreadLoader(FileWork([Path("a"), None]))
    loader.start(1)
    error = finished(loader, 1).error
    assert error is not None and "no weights" in error
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        loader.start(0)


def test_the_most_urgent_job_is_next(gate: threading.Event) -> None:
    done: list[Job] = []
    begun = threading.Event()

    def work(job: Job) -> None:
        begun.set()
        gate.wait(30)
        done.append(job)

    loader, node = ThreadLoader(work), Node((1,), 0, KVTree().root)
    write, read = WriteKV((node,)), ReadKV((node,))
    loader.start(0)
    begun.wait(30)
    for job in (write, 1, read):
        loader.start(job)
    gate.set()
    loader.wait(write)
    assert done == [0, read, 1, write]
    loader.close()
