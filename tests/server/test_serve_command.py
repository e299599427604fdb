"""``specpilot serve``: its messages, its signals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from fastapi import FastAPI

from runtime.cli import main
from runtime.server.config import ServerConfig
from runtime.server.listening import Server
from tests.server.serving import PATIENCE_S
from tests.tiny_zoo import TinyZoo

Capture = pytest.CaptureFixture[str]


def refused(arguments: list[str], capsys: Capture) -> str:
    """The one line of a refused call."""
    assert main(["serve", *arguments]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("specpilot "))
    return line


def test_a_port_in_use_is_told_before_anything_is_loaded(tiny_zoo: TinyZoo, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(["--bundle", str(tiny_zoo.bundle), "--port", str(port), "--target", "/nope"], capsys)
    assert re.search(rf"cannot listen on 127\.0\.0\.1 port {port} .*choose another --port", line)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "999.1.1.1"], "cannot listen on 999.1.1.1"),
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--queue", "0"], "--queue must be at least 1"),
        (["--timeout", "nan"], "--timeout must be above 0"),
        (["--controller", "oracle"], "unknown controller 'oracle'"),
        (["--port", "0", "--target", "/nope"], "no model '/nope'"),
        (["--port", "0", "--threads", "-1"], "expected a number of threads"),
        (["--kv-megabytes", "-1"], "--kv-megabytes must be at least 0"),
    ],
)
def test_a_wrong_option_is_refused(tiny_zoo: TinyZoo, capsys: Capture, options: list[str], message: str) -> None:
    assert message in refused(["--bundle", str(tiny_zoo.bundle), *options], capsys)


def test_a_missing_bundle_is_refused(capsys: Capture) -> None:
    assert "no bundle at" in refused(["--bundle", "/nope"], capsys)


def test_a_missing_extra_is_named(tiny_zoo: TinyZoo, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "runtime.server.listening", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    line = refused(["--bundle", str(tiny_zoo.bundle)], capsys)
    assert "needs the package 'uvicorn'" in line and "pip install 'specpilot[serve]'" in line


def test_another_missing_module_is_no_missing_extra(tiny_zoo: TinyZoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "runtime.server.listening", raising=False)
    monkeypatch.setitem(sys.modules, "runtime.server.worker", None)
    with pytest.raises(ModuleNotFoundError, match=r"runtime\.server\.worker"):
        main(["serve", "--bundle", str(tiny_zoo.bundle)])


def test_a_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("runtime.server.listening.os._exit", ended.append)
    server = Server(FastAPI(), ServerConfig("tiny"), lambda: None)
    server.handle_exit(signal.SIGINT, None)
    assert server.should_exit and ended == []
    server.handle_exit(signal.SIGTERM, None)
    assert ended == [130]


def test_help_has_examples(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in shown and "exit codes" in shown


def test_the_command_serves_until_it_is_interrupted(tiny_zoo: TinyZoo) -> None:
    command = [sys.executable, "-m", "runtime.cli", "serve", "--bundle", str(tiny_zoo.bundle), "--port", "0"]
    environment = {**os.environ, "SPECPILOT_API_KEY": "from the environment", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            url = process.stdout.readline().split()[-1]
            client = httpx.Client(trust_env=False, timeout=PATIENCE_S)
            with client:
                assert client.get(f"{url}/v1/models").status_code == 401
                key = {"Authorization": "Bearer from the environment"}
                body = {"model": "tiny", "prompt": "w5", "max_tokens": 4}
                assert client.post(f"{url}/v1/completions", json=body, headers=key).status_code == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
