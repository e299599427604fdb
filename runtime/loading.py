"""What the loader's thread does with real files: reads drafts, reads and writes stored KV."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.engine.drafts import LoadDraft, load_torch_draft
from runtime.engine.native.team import working_beside
from runtime.errors import UserError
from runtime.kv_folder import KVFolder
from runtime.memory.base import Job, ReadKV, WriteKV
from runtime.zoo import Zoo

LOGGER = logging.getLogger(__name__)

Version = tuple[int, int, int]
"""What tells a file from the one that lay there before: inode, size, time of the last change (ns)."""


@dataclass(frozen=True)
class FileWork:
    """Does a loader's jobs.

    Attributes:
        paths: Draft file by draft index; None for a draft without weights.
        device: Torch device that drafts are brought to.
        disk: Where stored KV lies; None = nowhere.
        target_folder: The target's folder, for drafts that are made of its layers; None = there are none.
        sha256s: By draft index the hash (hex) that the file's bytes must have whenever they are loaded; empty = any.
        load: Brings a draft into memory.
    """

    paths: Sequence[Path | None]
    device: str = "cpu"
    disk: KVFolder | None = None
    target_folder: Path | None = None
    sha256s: Sequence[str] = ()
    load: LoadDraft = load_torch_draft
    _refused: dict[int, Version | None] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of_zoo(
        cls,
        zoo: Zoo,
        device: str,
        disk: KVFolder | None = None,
        target_folder: Path | None = None,
        load: LoadDraft = load_torch_draft,
    ) -> FileWork:
        """For the drafts of a zoo."""
        paths = [zoo.draft_path(i) if draft.file else None for i, draft in enumerate(zoo.drafts)]
        return cls(paths, device, disk, target_folder, [draft.sha256 for draft in zoo.drafts], load)

    def __call__(self, job: Job) -> Any:
        """Do a job and return its payload.

        Raises:
            UserError: If a draft cannot be read or is not the one it should be, or KV cannot be written.
        """
        with working_beside():
            return self._draft(job) if isinstance(job, int) else self._kv(job)

    def _kv(self, job: ReadKV | WriteKV) -> Any:
        if self.disk is None:
            raise ValueError(f"expected a folder for stored KV, got none for {job}")
        if isinstance(job, ReadKV):
            return self.disk.read(job.nodes)
        return self._write(job, self.disk)

    def hopeful(self, draft: int) -> bool:
        """Whether loading a draft that failed may go better now: its file is there, and not the one that was refused.

        May be called from any thread; asks for the file's facts only.
        """
        path = self.paths[draft]
        version = None if path is None else _version(path)
        return version is not None and version != self._refused.get(draft)

    def _draft(self, draft: int) -> Any:
        path = self.paths[draft]
        if path is None:
            raise ValueError(f"expected a draft with a file, got draft {draft}: it has no weights to load")
        sha256 = self.sha256s[draft] if self.sha256s else ""
        version = _version(path)
        try:
            return self.load(path, self.device, self.target_folder, sha256)
        except UserError:
            self._refused[draft] = version
            raise
        except Exception as failure:  # whatever a damaged file does to a reader
            LOGGER.debug("loading %s failed", path, exc_info=True)
            raise UserError(
                f"{path}: cannot be loaded ({type(failure).__name__}: {failure}); copy or distill it again"
            ) from failure

    def _write(self, job: WriteKV, disk: KVFolder) -> None:
        try:
            disk.write(job.nodes)
        except OSError as failure:
            raise UserError(f"{failure}: free some room there, or use another folder") from failure


def _version(path: Path) -> Version | None:
    """Of the file that lies there now; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
