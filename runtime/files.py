"""Files that are whole or absent: write aside, rename; hash; JSON with a schema version."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.errors import UserError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path``; on success it is renamed onto ``path``, on any error it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def is_alive(pid: str) -> bool:
    """Whether the process that a temporary file is named after still runs; unknown on Windows, then True."""
    if not pid.isdecimal():
        return False
    if sys.platform == "win32":
        return True  # signal 0 would end the process
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def write_json(path: Path, data: Any) -> None:
    """Write JSON, aside first."""
    with written_whole(path) as aside:
        aside.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path, what: str, schema: int, oldest: int | None = None) -> dict[str, Any]:
    """Read a JSON object and check its schema version.

    Args:
        path: The file.
        what: What the file is, for messages, e.g. ``profile``.
        schema: The version this code writes and reads.
        oldest: The oldest version it still reads; None = only ``schema``.

    Raises:
        UserError: If the file is missing, not JSON, not an object, or of another schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no {what} at {path}: check the path") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is not a readable {what} ({error}): make it again") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a {what} as a JSON object, got {type(data).__name__}")
    got = data.get("schema")
    if not isinstance(got, int) or not (oldest or schema) <= got <= schema:
        raise UserError(f"{path}: expected a {what} of schema {schema}, got {got}: make it again")
    return data


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
