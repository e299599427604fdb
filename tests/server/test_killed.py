"""``kill -9`` at any moment while stored KV is written: started again on the same folder, it serves the same."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.serving import Serving, serving
from runtime.engine.tensor_file import opened
from tests.server.serving import MODEL, PATIENCE_S
from tests.tiny_zoo import TinyZoo

WORDS = 96
"""Of a prompt: three blocks of stored KV."""
OPTIONS = ("--threads", "1", "--controller", "plain_reuse", "--kv-megabytes", "64")


@contextmanager
def started(tiny_zoo: TinyZoo, folder: Path) -> Iterator[tuple[Serving, httpx.Client]]:
    options = (*OPTIONS, "--kv-folder", str(folder / "kv"))
    with (
        serving(tiny_zoo.bundle, options, folder / "log") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        yield server, client


def text_of(client: httpx.Client, prompt: str) -> str:
    answer = client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0})
    assert answer.status_code == 200, answer.text
    return str(json.loads(answer.text)["choices"][0]["text"])


def prompts(rng: random.Random) -> Iterator[str]:
    while True:
        yield " ".join(f"w{rng.randrange(3, 61)}" for _ in range(WORDS))


def leftovers(folder: Path) -> list[Path]:
    return list((folder / "kv").rglob("*.tmp"))


def refuse_unless_whole(folder: Path) -> int:
    """Every file of stored KV that is there can be read; how many there are."""
    files = list((folder / "kv").rglob("*.safetensors"))
    for path in files:
        with opened(path) as file:
            assert file.get_tensor("kv").numel() > 0 and len(file.get_tensor("tokens")) == 32
    return len(files)


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_while_kv_is_written(tiny_zoo: TinyZoo, tmp_path: Path, kills: int) -> None:
    rng = random.Random(kills)
    known: dict[str, str] = {}
    reused = 0
    for _ in range(kills):
        with started(tiny_zoo, tmp_path) as (server, client):
            assert not leftovers(tmp_path)
            for prompt, text in rng.sample(sorted(known.items()), min(8, len(known))):
                assert text_of(client, prompt) == text
            reused += int(server.metrics().get('specpilot_prompt_tokens_total{source="reused"}', 0))
            killer = threading.Timer(rng.uniform(0.05, 1.0), server.process.kill)
            killer.start()
            with suppress(httpx.TransportError):
                for prompt in prompts(rng):
                    known[prompt] = text_of(client, prompt)
            killer.join()
        refuse_unless_whole(tmp_path)
    with started(tiny_zoo, tmp_path) as (server, client):
        assert not leftovers(tmp_path) and refuse_unless_whole(tmp_path) > 0
        for prompt in sorted(known)[:20]:
            assert text_of(client, prompt) == known[prompt]
        assert reused + server.metrics()['specpilot_prompt_tokens_total{source="reused"}'] > 0
    messages = (tmp_path / "log").read_text()
    assert "Traceback" not in messages, messages
