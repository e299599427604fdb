"""schemathesis over the server's own description: whatever fits it or does not, no answer is a 500."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import MODEL, Running

EXAMPLES = 40


@pytest.mark.slow
def test_schemathesis_finds_no_server_error(server: Running, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="the extra 'dev' is not installed")
    description: dict[str, Any] = server.get("/openapi.json").json()
    for name in ("ChatRequest", "CompletionRequest"):  # else nothing would get behind the model's name
        fields = description["components"]["schemas"][name]["properties"]
        fields["model"] = {"const": MODEL}
        fields["max_tokens"] = {"type": "integer", "minimum": 1, "maximum": 3}
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(description))
    command = [Path(sys.executable).with_name("schemathesis"), "run", path, "--url", server.url, "--seed", "1"]
    done = subprocess.run(
        [*map(str, command), "--checks", "not_a_server_error", "--max-examples", str(EXAMPLES)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert server.get("/health").status_code == 200
    assert server.metric('specpilot_requests_total{outcome="failed"}') == 0
