"""Functions of the compiled kernels that decisions use.

They are called with the interpreter's lock held: each is over before another thread could have made use of it, and
giving the lock away could mean waiting for it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from runtime.engine.native.library import kernels

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long
_FUNCTIONS = {
    "run_tape": ((_POINTER, _LONG, _POINTER), None),
    "predict": ((_POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER, _POINTER), ctypes.c_int),
}


def function(name: str) -> Any:
    """A function of ``decisions.c``, typed; None where there are no compiled kernels."""
    library = kernels()
    return None if library is None else _typed(library._name, name)


@cache
def _typed(path: str, name: str) -> Any:
    found = getattr(ctypes.PyDLL(path), name)
    found.argtypes, found.restype = _FUNCTIONS[name]
    return found
