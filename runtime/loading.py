"""What the loader's thread does with real files: reads drafts, reads and writes stored KV."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.engine.loaded_draft import load_draft
from runtime.errors import UserError
from runtime.kv_folder import KVFolder
from runtime.memory.base import Job, ReadKV, WriteKV
from runtime.zoo import Zoo

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileWork:
    """Does a loader's jobs.

    Attributes:
        paths: Draft file by draft index; None for a draft without weights.
        device: Torch device that drafts are brought to.
        disk: Where stored KV lies; None = nowhere.
        target_folder: The target's folder, for drafts that are made of its layers; None = there are none.
    """

    paths: Sequence[Path | None]
    device: str = "cpu"
    disk: KVFolder | None = None
    target_folder: Path | None = None

    @classmethod
    def of_zoo(cls, zoo: Zoo, device: str, disk: KVFolder | None = None, target_folder: Path | None = None) -> FileWork:
        """For the drafts of a zoo."""
        paths = [zoo.draft_path(i) if draft.file else None for i, draft in enumerate(zoo.drafts)]
        return cls(paths, device, disk, target_folder)

    def __call__(self, job: Job) -> Any:
        """Do a job and return its payload.

        Raises:
            UserError: If a draft cannot be read, or KV cannot be written.
        """
        if isinstance(job, int):
            return self._draft(job)
        if self.disk is None:
            raise ValueError(f"expected a folder for stored KV, got none for {job}")
        if isinstance(job, ReadKV):
            return self.disk.read(job.nodes)
        return self._write(job, self.disk)

    def _draft(self, draft: int) -> Any:
        path = self.paths[draft]
        if path is None:
            raise ValueError(f"expected a draft with a file, got draft {draft}: it has no weights to load")
        try:
            return load_draft(path, self.device, target_folder=self.target_folder)
        except UserError:
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
