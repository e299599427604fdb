"""The checkpoints of a run: the last two are kept, the newest whole one is gone on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agents.checkpoints.file import Checkpoint, read_checkpoint, write_checkpoint
from runtime.errors import UserError
from runtime.files import is_alive

FOLDER = "checkpoints"
SUFFIX = ".safetensors"
KEPT = 2
"""With two, damage to the newest loses one interval more, not the run."""


@dataclass(frozen=True)
class Found:
    """A checkpoint to go on from.

    Attributes:
        run: Folder of its run.
        path: Its file.
        checkpoint: What it holds.
        passed_over: Why newer files were not taken, one line each.
    """

    run: Path
    path: Path
    checkpoint: Checkpoint
    passed_over: tuple[str, ...] = ()


class CheckpointFolder:
    """``checkpoints/`` of a run folder.

    Args:
        run: The run folder.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER

    def paths(self) -> list[Path]:
        """Files of checkpoints, oldest first; some may be damaged."""
        return sorted(path for path in self.folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then drop those before the last two."""
        path = self.folder / f"{checkpoint.decisions:012d}{SUFFIX}"
        write_checkpoint(path, checkpoint)
        for old in self.paths()[:-KEPT]:
            old.unlink()
        return path

    def clean(self, decisions: int) -> None:
        """Remove what lies ahead of a run that goes on from here, and half-written files of processes that ended.

        Args:
            decisions: Checkpoints with more decisions than these are of a future that will be another.
        """
        for path in self.paths():
            if int(path.stem) > decisions:
                path.unlink()
        for aside in self.folder.glob(f".*{SUFFIX}.*.tmp"):
            if not is_alive(aside.suffixes[-2].removeprefix(".")):
                aside.unlink(missing_ok=True)


def find_checkpoint(place: Path) -> Found:
    """What to go on from: a checkpoint file, or the newest whole one of a run folder.

    Raises:
        UserError: If there is none, or the named file is damaged.
    """
    place = place.resolve()
    if place.is_file():
        return Found(place.parent.parent, place, read_checkpoint(place))
    run = place.parent if place.name == FOLDER else place
    passed_over: list[str] = []
    for path in reversed(CheckpointFolder(run).paths()):
        try:
            return Found(run, path, read_checkpoint(path), tuple(passed_over))
        except UserError as error:
            passed_over.append(str(error))
    why = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise UserError(
        f"no checkpoint to resume from in {run / FOLDER}{why}: give a run folder, e.g. resume=outputs/latest, or one "
        f"of its checkpoints/*{SUFFIX}"
    )
