"""Draft files that are deleted, cut or replaced under a running server cost a draft at most, and may come back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.machine import ENOUGH, Machine
from tests.server.serving import Running, ask, running, until

FILE = "zoo/drafts/one.draft.safetensors"
WHOLE = 1 << 40
"""Keeping so much memory free makes the server give up every draft, once nothing is available."""


def delete(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])  # the same file, shorter


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_kind(path: Path) -> None:
    shutil.copyfile(path.parents[2] / "policy.onnx", path)


def other_draft(path: Path) -> None:
    """A draft file like any other, of the same target; only its hash tells."""
    path.unlink()
    shutil.copyfile(path.with_name("two.draft.safetensors"), path)


def one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = [delete, cut, empty, other_kind, other_draft, one_byte]
Damage = Callable[[Path], None]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that failed may soon be tried again."""
    monkeypatch.setattr("runtime.memory.retries.FIRST_S", 0.2)


def give_up_all_drafts(server: Running, machine: Machine) -> None:
    machine.available = 0
    until(lambda: server.draft_state("one") == "stored")


def use_memory_again(server: Running, machine: Machine) -> None:
    machine.available = ENOUGH
    until(lambda: server.metric("specpilot_set_aside_bytes") == 0)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_draft_in_memory_outlives_its_file(bundle: Path, steady: Running, damage: Damage) -> None:
    """None of it is mapped: touching a page of a mapped file that was cut would end the process."""
    with running(bundle, "static:one:4") as server:
        ask(server)
        until(lambda: server.draft_state("one") == "resident")
        damage(bundle / FILE)
        before = server.metric('specpilot_drafted_tokens_total{draft="one"}')
        assert ask(server) == ask(steady)
        assert server.metric('specpilot_drafted_tokens_total{draft="one"}') > before
        assert server.draft_state("one") == "resident"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_the_one_is_refused_when_it_is_loaded(
    bundle: Path, steady: Running, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    with running(bundle, "static:one:4") as server:
        damage(bundle / FILE)
        assert ask(server) == ask(steady)
        until(lambda: server.draft_state("one") == "failed")
        assert ask(server) == ask(steady)
        assert server.metric('specpilot_draft_failed{draft="one"}') == 1
        assert server.metric('specpilot_drafted_tokens_total{draft="one"}') == 0
    (told,) = (line for line in caplog.messages if "draft one" in line)
    assert "cannot be loaded, decoding goes on without it" in told and FILE in told


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("damage", [delete, cut, other_draft])
def test_a_file_that_comes_back_is_used_again(
    bundle: Path, steady: Running, machine: Machine, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    good = bundle.with_name("good")
    shutil.copyfile(bundle / FILE, good)
    with running(bundle, "static:one:4", keep_free_bytes=WHOLE) as server:
        ask(server)
        until(lambda: server.draft_state("one") == "resident")
        give_up_all_drafts(server, machine)
        damage(bundle / FILE)
        use_memory_again(server, machine)
        assert ask(server) == ask(steady)
        until(lambda: server.draft_state("one") == "failed")
        loads = server.metric("specpilot_loads")
        assert ask(server) == ask(steady)
        assert server.metric("specpilot_loads") == loads  # the same file is not read again
        good.replace(bundle / FILE)
        until(lambda: server.draft_state("one") == "stored")
        assert ask(server) == ask(steady)
        until(lambda: server.draft_state("one") == "resident")
        assert server.metric('specpilot_draft_failed{draft="one"}') == 0
    assert [line.split(":")[0] for line in caplog.messages if "draft one" in line] == [
        "draft one cannot be loaded, decoding goes on without it",
        "draft one could be loaded again and is used",
    ]


def test_the_other_drafts_go_on(bundle: Path, steady: Running) -> None:
    with running(bundle, "static:two:4") as server:
        delete(bundle / FILE)
        ask(server)
        until(lambda: server.draft_state("two") == "resident")
        assert ask(server) == ask(steady)
        assert server.metric('specpilot_drafted_tokens_total{draft="two"}') > 0
