"""Which code made a report."""

from __future__ import annotations

import subprocess
from pathlib import Path

UNKNOWN = "unknown"


def git_revision(folder: Path | None = None) -> str:
    """Short commit id of a checkout (default: this one), ``+changes`` if files differ; ``unknown`` without git."""
    where = folder or Path(__file__).resolve().parents[2]
    commit = _git(where, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return UNKNOWN
    return f"{commit}+changes" if _git(where, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
