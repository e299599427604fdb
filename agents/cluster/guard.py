"""Runs a script or module and ends it, with all its processes, when whoever started it is gone.

``python -P -m agents.cluster.guard train.py seed=1`` or ``... guard -m agents.evaluate suite=quick``, with a pipe as
standard input whose other end the parent keeps open. A node that dies takes its Ray worker with it, the pipe closes,
and the job ends too: it must not go on writing into a folder in which its retry is at work on another node.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence


def guarded(arguments: Sequence[str]) -> None:
    """Run ``script ARGS`` or ``-m module ARGS`` as the main program; its exit status is this process's.

    Args:
        arguments: What would follow the interpreter on a command line.
    """
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_watch, args=(lifeline,), name="lifeline", daemon=True).start()
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")


def _watch(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    guarded(sys.argv[1:])
