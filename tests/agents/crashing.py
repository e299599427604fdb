"""Runs that are killed at random moments and resumed: ``python -m tests.agents.crashing FOLDER KILLS SEED``.

Every part of a run is a process of its own, forked from this one, which has imported everything: so a kill hits
training, not imports. ``FOLDER/whole`` is a run that is left alone; then runs are killed until there were ``KILLS``
kills, and go on to their end. Prints their folders and kills as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch.onnx.utils  # noqa: F401 - the exporter, else imported by every part

from agents.checkpoints.folder import find_checkpoint
from agents.learning import learn
from runtime.errors import UserError
from tests.agents.tiny_training import tiny_training

SHORT = ("agent.eval_every=96",)


def train(folder: Path) -> None:
    """A run from where it stands to its end."""
    try:
        checkpoint = find_checkpoint(folder).checkpoint
    except UserError:
        checkpoint = None  # killed before the first was written
    learn(tiny_training(folder, *SHORT), checkpoint)


def part(folder: Path, kill_after_s: float | None) -> int | None:
    """A process that trains; its exit status, None if it was killed."""
    process = os.fork()
    if process == 0:
        try:
            train(folder)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def run_killed(folder: Path, kills: int, longest_s: float, chance: random.Random) -> int:
    """One run to its end, killed at most so often; how often it was."""
    killed = 0
    while True:
        status = part(folder, chance.uniform(0.0, longest_s) if killed < kills else None)
        if status is not None:
            if status:
                sys.exit(f"a part of {folder} failed with status {status}")
            return killed
        killed += 1


def main(out: Path, kills: int, seed: int) -> None:
    """Leave runs in ``out``."""
    chance = random.Random(seed)
    began_s = time.monotonic()
    if part(out / "whole", None):
        sys.exit("the run that is left alone failed")
    longest_s = time.monotonic() - began_s
    runs: dict[str, int] = {}
    while sum(runs.values()) < kills:
        name = f"killed-{len(runs)}"
        runs[name] = run_killed(out / name, kills - sum(runs.values()), longest_s, chance)
    print(json.dumps(runs))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
