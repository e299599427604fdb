"""docs/deploy.md names every metric, option default and path that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from runtime.server.config import ServerConfig
from tests.server.serving import MODEL, PROMPT, Running

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")


def test_every_metric_is_in_the_table(steady: Running) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "temperature": 0}
    assert steady.post("/v1/completions", json=body).status_code == 200
    kinds = dict(re.findall(r"^# TYPE (specpilot_\w+) (\w+)$", steady.get("/metrics").text, re.M))
    table = re.findall(r"^\| `(specpilot_\w+)", PAGE, re.M)
    assert sorted(table) == sorted(kinds)


def test_every_path_is_in_the_table(server: Running) -> None:
    described = server.get("/openapi.json").json()["paths"]
    named = set(re.findall(r"^\| `(?:GET|POST) (/[\w/.]*)`", PAGE, re.M))
    assert named == {path for path in described if "{" not in path} | {"/", "/openapi.json"}


def test_the_limits_are_those_of_the_server() -> None:
    usual = ServerConfig(MODEL)
    assert f"`--queue` ({usual.queue})" in PAGE and f"`--timeout` ({usual.timeout_s:g} s)" in PAGE
    assert f"`--max-tokens` ({usual.max_tokens})" in PAGE and usual.max_body_bytes == 1 << 20
    assert f"| {usual.body_timeout_s:g} s | 408" in PAGE and f"| {usual.write_timeout_s:g} s | the stream" in PAGE
