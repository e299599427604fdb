"""What became of a job: ``status.json`` in its folder, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from runtime.errors import UserError
from runtime.files import read_json, write_json

STATUS_SCHEMA = 1
STATUS = "status.json"
QUEUED, RUNNING, DONE, FAILED, STOPPED = "queued", "running", "done", "failed", "stopped"
STYLES = {DONE: "green", FAILED: "bold red", STOPPED: "dim"}


@dataclass(frozen=True)
class Status:
    """What became of a job. Names are those of ``status.json``.

    Attributes:
        name: What the job is called in the table.
        state: ``queued``, ``running``, ``done``, ``failed`` or ``stopped`` (by an early-stopping rule, not a fault).
        command: What can be typed to run it again, alone.
        error: Why it failed: the last lines of its log, or how its process ended. Empty if it did not fail.
        node: Where it ran last: host name and the first letters of Ray's node id.
        started: When its first attempt began, ISO 8601 in UTC; empty if it never did.
        seconds: Wall time from then until it ended, attempts on nodes that died included.
        retries: Attempts after the first one.
        speedup: Tokens per second of its policy over plain decoding, on the suite's held-out streams; None = no report.
    """

    name: str
    state: str
    command: str
    error: str = ""
    node: str = ""
    started: str = ""
    seconds: float = 0.0
    retries: int = 0
    speedup: float | None = None

    def save(self, folder: Path) -> None:
        """Write ``status.json`` into the job's folder, aside first."""
        write_json(folder / STATUS, {"schema": STATUS_SCHEMA, **asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> Status:
        """Read the ``status.json`` of a job's folder.

        Raises:
            UserError: If there is none, or it is not a whole one.
        """
        data = read_json(folder / STATUS, "status of a job", STATUS_SCHEMA)
        del data["schema"]
        try:
            return cls(**data)
        except TypeError as error:
            raise UserError(f"{folder / STATUS}: not a whole status of a job ({error}): remove it") from None


def known_status(folder: Path) -> Status | None:
    """The status in a folder; None if there is none that can be read."""
    try:
        return Status.load(folder)
    except UserError:
        return None


def summary(statuses: Sequence[Status]) -> str:
    """How many jobs ended how, in one line."""
    counts = {state: sum(status.state == state for status in statuses) for state in (DONE, STOPPED, FAILED)}
    return f"{len(statuses)} jobs: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def print_statuses(statuses: Sequence[Status], console: Console | None = None) -> None:
    """Print one row for every job, then why jobs failed."""
    console = console or Console()
    table = Table(box=None, header_style="bold", pad_edge=False, title=summary(statuses), title_justify="left")
    for head, justify in (
        ("job", "left"),
        ("state", "left"),
        ("× plain", "right"),
        ("s", "right"),
        ("retries", "right"),
    ):
        table.add_column(head, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("node", no_wrap=True)
    for status in statuses:
        table.add_row(
            status.name,
            status.state,
            "–" if status.speedup is None else f"{status.speedup:.3f}",
            f"{status.seconds:.0f}",
            str(status.retries),
            status.node,
            style=STYLES.get(status.state),
        )
    console.print(table)
    for status in statuses:
        if status.state == FAILED:
            console.print(
                f"\n{status.name}: {last_line(status.error)}\n  {status.command}", markup=False, highlight=False
            )


def last_line(text: str) -> str:
    """The last line of a text that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
