"""Compiling with numba, typed for mypy, kept on disk.

What was compiled is kept in ``__pycache__`` of this folder (where that cannot be written, where numba finds a place),
below a name made of every source that goes into it: numba itself looks at one file only, and would go on using code
that a change in another file made wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

import runtime.control.observation
import runtime.core
import runtime.decoding.drafters.lookup

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER = Path(__file__).resolve().parent


def compiled(function: Function) -> Function:
    """The same function in machine code, made when it is first called; it runs without the interpreter's lock.

    Division follows IEEE (by zero gives infinity, no exception); all else rounds as Python's floats do. Arrays are not
    counted as in use while it runs (``_nrt``), so it cannot allocate any: counting cost most of the time.
    """
    njit: Any = numba.njit
    config: Any = numba.config
    options = {"nogil": True, "error_model": "numpy", "_nrt": False}
    before, config.CACHE_DIR = config.CACHE_DIR, str(FOLDER / "__pycache__" / _sources())
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # no place to keep it
        made = njit(**options)(function)
    finally:
        config.CACHE_DIR = before
    return cast(Function, made)


@cache
def _sources() -> str:
    """A name that changes with any source whose constants or functions are compiled."""
    digest = hashlib.sha256()
    modules = runtime.core, runtime.control.observation, runtime.decoding.drafters.lookup
    for path in (*sorted(FOLDER.glob("*.py")), *(Path(str(module.__file__)) for module in modules)):
        digest.update(path.read_bytes())
    return f"compiled-{digest.hexdigest()[:16]}"
