"""Paths of a configuration: what they are relative to, whatever the working directory is."""

from __future__ import annotations

from pathlib import Path

from hydra.utils import to_absolute_path

PROJECT = Path(__file__).resolve().parent.parent


def project_path(path: str) -> Path:
    """A zoo's folder or a profile of the configuration, absolute.

    ``~`` is your home. A relative path is taken from the project's folder, as the paths in ``conf/`` are; if nothing is
    there, from the folder in which the command was started.
    """
    asked = Path(path).expanduser()
    inside, outside = PROJECT / asked, Path(to_absolute_path(str(asked)))
    return outside if outside.exists() and not inside.exists() else inside
