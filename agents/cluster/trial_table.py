"""The trials of a search: ``tune.json``, a table, and the best values as a command that can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agents.cluster.curve import Curve
from agents.cluster.status import FAILED, RUNNING, STATUS, STOPPED, Status, last_line
from agents.cluster.trial import TRIALS
from agents.cluster.work import seconds_since
from runtime.files import write_json

RESULT = "tune.json"
RESULT_SCHEMA = 1


@dataclass(frozen=True)
class Trial:
    """One trial. Names are those of ``tune.json``.

    Attributes:
        folder: Of its run, within the search's.
        overrides: The values that were tried, as overrides of ``train.py``.
        speedup: Best validation: speed-up over plain decoding; None = none was made.
        decisions: Decisions at its last validation.
        state: See ``Status``.
        error: Why it failed.
    """

    folder: str
    overrides: tuple[str, ...]
    speedup: float | None
    decisions: int
    state: str
    error: str = ""


def settle(out: Path) -> None:
    """When a search has ended: trials that still say they run were stopped by the rule that stops those behind."""
    for path in sorted((out / TRIALS).glob(f"*/{STATUS}")):
        status = Status.load(path.parent)
        if status.state == RUNNING:
            state = FAILED if status.error else STOPPED
            replace(status, state=state, seconds=seconds_since(status.started)).save(path.parent)


def read_trials(out: Path, metric: str) -> list[Trial]:
    """Every trial of a search's folder, best first."""
    trials = []
    for path in sorted((out / TRIALS).glob(f"*/{STATUS}")):
        status, points = Status.load(path.parent), Curve(path.parent, metric).points()
        best = max((point.speedup for point in points), default=None)
        last = points[-1].decisions if points else 0
        folder = str(path.parent.relative_to(out))
        trials.append(Trial(folder, tuple(status.name.split()), best, last, status.state, last_line(status.error)))
    return sorted(trials, key=lambda trial: -(trial.speedup or 0.0))


def write_trials(out: Path, trials: Sequence[Trial], metric: str) -> None:
    """Write ``tune.json``."""
    data = {"schema": RESULT_SCHEMA, "metric": metric, "trials": [asdict(trial) for trial in trials]}
    write_json(out / RESULT, data)


def print_trials(trials: Sequence[Trial], train: Sequence[str], console: Console | None = None) -> None:
    """Print the trials, best first, and the command that trains with the best values.

    Args:
        trials: Best first.
        train: Overrides of every trial; those of the suite and of what is shown are not the command's.
        console: Where to.
    """
    console = console or Console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("values", overflow="fold")
    for head in ("× plain", "decisions"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for trial in trials:
        speedup = "–" if trial.speedup is None else f"{trial.speedup:.3f}"
        state = f"{trial.state}: {trial.error}" if trial.error else trial.state
        table.add_row(" ".join(trial.overrides), speedup, str(trial.decisions), state)
    console.print(table)
    if trials and trials[0].speedup is not None:
        console.print("\nThe best values, ready to type:", highlight=False)
        console.print(best_command(trials[0], train), markup=False, highlight=False, soft_wrap=True)


def best_command(best: Trial, train: Sequence[str]) -> str:
    """The command that trains with a trial's values."""
    kept = [each for each in train if not each.startswith(("suite", "live_check", "progress", "dry_run"))]
    return f"python train.py {shlex.join([*kept, *best.overrides])}"
